"""Users, rules, tokens, logins, the mode and the audit."""

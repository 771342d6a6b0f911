"""Handlers for users, rules, tokens, logins, `auth.mode` and the audit."""

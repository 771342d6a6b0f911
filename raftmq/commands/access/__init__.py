"""Commands about users, their rules and logins, and the audit."""

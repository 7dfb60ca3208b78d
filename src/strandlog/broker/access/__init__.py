"""Access control: logins, ACLs and the authorizer, client quotas, and the audit log."""

//! Requests about candidate tables: shadowed policy and audited policies.

use axum::body::Bytes;
use axum::http::Method;

use super::{Client, ClientError};
use crate::control::protocol::{AuditPatch, AuditReport, AuditTables, Loaded, ShadowReport};
use crate::tables::RuleTables;

impl Client {
    /// Loads candidate tables, which are not enforced, in place of earlier ones.
    pub fn put_shadow(&self, tables: &RuleTables, allow_empty: bool) -> Result<ShadowReport, ClientError> {
        let path = if allow_empty { "/v1/shadow?allow_empty=true" } else { "/v1/shadow" };
        self.send(Method::PUT, path, tables)
    }

    /// Reads the disagreements of candidate tables and tables in force. Fails with status 404 without a candidate.
    pub fn shadow(&self) -> Result<ShadowReport, ClientError> {
        self.get("/v1/shadow")
    }

    /// Enforces the candidate tables. With `replace` the tables in force may have changed since their load.
    pub fn promote_shadow(&self, allow_empty: bool, replace: bool) -> Result<Loaded, ClientError> {
        let path = format!("/v1/shadow/promote?allow_empty={allow_empty}&replace={replace}");
        self.read(Method::POST, &path, Bytes::new())
    }

    /// Forgets the candidate tables.
    pub fn delete_shadow(&self) -> Result<(), ClientError> {
        self.ask(Method::DELETE, "/v1/shadow", Bytes::new()).map(drop)
    }

    /// Loads audited policies, and tables in which they are enforced too, in place of earlier ones.
    pub fn put_audit(&self, audit: &AuditTables) -> Result<AuditReport, ClientError> {
        self.send(Method::PUT, "/v1/audit", audit)
    }

    /// Changes the tables of the audited policies. An error with status 409 means that one of the bases does not match.
    pub fn patch_audit(&self, patch: &AuditPatch) -> Result<AuditReport, ClientError> {
        self.send(Method::PATCH, "/v1/audit", patch)
    }

    /// Reads the flows that audited policies would deny.
    pub fn audit(&self) -> Result<AuditReport, ClientError> {
        self.get("/v1/audit")
    }

    /// Forgets the audit: no policy is audited.
    pub fn delete_audit(&self) -> Result<(), ClientError> {
        self.ask(Method::DELETE, "/v1/audit", Bytes::new()).map(drop)
    }
}

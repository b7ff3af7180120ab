//! Requests about Services.

use axum::http::Method;

use super::{Client, ClientError};
use crate::control::protocol::{Loaded, ServicesPatch, ServicesReport};
use crate::tables::ServiceTable;

impl Client {
    /// Reports the loaded Services, with the flows that they have opened.
    pub fn services(&self) -> Result<ServicesReport, ClientError> {
        self.get("/v1/services")
    }

    /// Loads Services in place of those before. On return every worker translates by them.
    pub fn put_services(&self, services: &ServiceTable) -> Result<Loaded, ClientError> {
        self.send(Method::PUT, "/v1/services", services)
    }

    /// Changes the loaded Services. An error with status 409 means that they are not the patch's base.
    pub fn patch_services(&self, patch: &ServicesPatch) -> Result<Loaded, ClientError> {
        self.send(Method::PATCH, "/v1/services", patch)
    }
}

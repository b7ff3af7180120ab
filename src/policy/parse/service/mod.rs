//! Service `v1` and `EndpointSlice` `discovery.k8s.io/v1`, with the defaults and the validation of the API
//! server (`pkg/apis/core/v1/defaults.go`, `pkg/apis/core/validation/validation.go`,
//! `pkg/apis/discovery/validation/validation.go`).

mod addresses;
mod endpoint_slice;
mod ports;
mod spec;
mod values;

pub(super) use endpoint_slice::{FIELDS as ENDPOINT_SLICE_FIELDS, endpoint_slice};
pub(super) use spec::service;

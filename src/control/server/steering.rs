//! Requests about drains of ports, the bandwidth of pods, and single routes.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Json;
use axum::routing::{get, put};
use ipnet::IpNet;

use super::handlers::{Body, HttpError, Shared, parse_body, run_blocking};
use crate::control::protocol::{PodInfo, PortFlows, RouteInfo};
use crate::control::{ApiError, Switch};
use crate::tables::PodName;

/// Routes of drains, of bandwidths and of single routes.
pub(super) fn routes() -> Router<Arc<Switch>> {
    Router::new()
        .route("/v1/ports/{name}/drain", put(drain).delete(undo))
        .route("/v1/pods/{namespace}/{name}/bandwidth", put(limit))
        .route("/v1/flows/ports", get(port_flows))
        .route("/v1/routes/{address}/{length}", put(put_route).delete(delete_route))
}

async fn drain(
    State(switch): Shared,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<PortFlows>, HttpError> {
    let Path(name) = name?;
    run_blocking(move || Ok(Json(switch.drain_port(&name, true)?)))
}

async fn undo(
    State(switch): Shared,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<PortFlows>, HttpError> {
    let Path(name) = name?;
    run_blocking(move || Ok(Json(switch.drain_port(&name, false)?)))
}

async fn limit(
    State(switch): Shared,
    name: Result<Path<(String, String)>, PathRejection>,
    body: Body,
) -> Result<Json<PodInfo>, HttpError> {
    let (Path((namespace, name)), body) = (name?, body?);
    let pod = PodName::new(namespace, name);
    run_blocking(move || Ok(Json(switch.limit_pod(&pod, parse_body(&body)?)?)))
}

async fn port_flows(State(switch): Shared) -> Result<Json<Vec<PortFlows>>, HttpError> {
    run_blocking(move || Ok(Json(switch.port_flows()?)))
}

async fn put_route(
    State(switch): Shared,
    prefix: Result<Path<(String, String)>, PathRejection>,
    body: Body,
) -> Result<Json<RouteInfo>, HttpError> {
    let (Path(prefix), body) = (prefix?, body?);
    run_blocking(move || Ok(Json(switch.put_route(parse_prefix(&prefix)?, &parse_body(&body)?)?)))
}

async fn delete_route(
    State(switch): Shared,
    prefix: Result<Path<(String, String)>, PathRejection>,
) -> Result<StatusCode, HttpError> {
    let Path(prefix) = prefix?;
    run_blocking(move || Ok(switch.delete_route(parse_prefix(&prefix)?)?))?;
    Ok(StatusCode::NO_CONTENT)
}

fn parse_prefix((address, length): &(String, String)) -> Result<IpNet, ApiError> {
    let prefix = format!("{address}/{length}");
    prefix.parse::<IpNet>().map_err(|_| ApiError::Field {
        field: "prefix",
        reason: format!("{prefix:?} is no prefix: the path ends in ADDRESS/LENGTH, such as 10.0.0.0/8"),
    })
}

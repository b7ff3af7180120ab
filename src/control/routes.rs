//! The verbs: one handler each, as in the table of [`protocol`](super::protocol).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, put};
use axum::{Extension, Router};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::explain::PathReport;
use super::protocol::{
    CountersReport, Loaded, PodInfo, PodRequest, PolicyOrigin, PortInfo, PortRequest, Problem, Status,
    TablesPatch, TablesSummary,
};
use super::{Closing, Refusal, Switch};
use crate::dataplane::FlowInfo;
use crate::limits::CONTROL_BODY_BYTES_MAX;
use crate::net::flow::Protocol;
use crate::policy::testcase::Endpoint;
use crate::tables::{PodName, RuleTables};

/// Flows in an answer where the request does not say.
const FLOWS_DEFAULT: usize = 1000;

/// All routes of the control socket.
pub(super) fn router(switch: Arc<Switch>) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/tables", get(tables).put(put_tables).patch(patch_tables).delete(delete_tables))
        .route("/v1/tables/document", get(tables_document))
        .route("/v1/ports", get(ports))
        .route("/v1/ports/{name}", put(put_port).delete(delete_port))
        .route("/v1/pods", get(pods))
        .route("/v1/pods/{namespace}/{name}", put(put_pod).delete(delete_pod))
        .route("/v1/counters", get(counters))
        .route("/v1/flows", get(flows))
        .route("/v1/explain", get(explain))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(CONTROL_BODY_BYTES_MAX))
        .layer(from_fn(refuse_announced_excess))
        .with_state(switch)
}

/// Process at the other end of a connection, where the kernel tells (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    uid: Option<u32>,
    pid: Option<i32>,
}

/// The routes for the requests of one connection, which know who sends them.
pub(super) fn with_peer(router: &Router, stream: &UnixStream) -> Router {
    let credentials = stream.peer_cred().ok();
    let peer = Peer {
        uid: credentials.map(|credentials| credentials.uid()),
        pid: credentials.and_then(|credentials| credentials.pid()),
    };
    router.clone().layer(Extension(peer))
}

fn origin(peer: Option<Extension<Peer>>) -> PolicyOrigin {
    let peer = peer.map(|Extension(peer)| peer);
    PolicyOrigin::control_socket(peer.and_then(|peer| peer.uid), peer.and_then(|peer| peer.pid))
}

type Shared = State<Arc<Switch>>;
type Body = Result<Bytes, BytesRejection>;

async fn status(State(switch): Shared) -> Json<Status> {
    Json(switch.status())
}

async fn tables(State(switch): Shared) -> Json<TablesSummary> {
    Json(switch.tables_summary())
}

async fn tables_document(State(switch): Shared) -> Result<Response, Failure> {
    let tables = switch.tables().ok_or(Refusal::NoTables)?;
    // Large tables take a while to write out: not on the thread that answers everybody.
    blocking(move || Ok(Json(&*tables).into_response()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TablesQuery {
    #[serde(default)]
    allow_empty: bool,
}

impl TablesQuery {
    fn closing(&self, otherwise: Closing) -> Closing {
        if self.allow_empty { Closing::Allowed } else { otherwise }
    }
}

async fn put_tables(
    State(switch): Shared,
    peer: Option<Extension<Peer>>,
    query: Result<Query<TablesQuery>, QueryRejection>,
    body: Body,
) -> Result<Json<Loaded>, Failure> {
    let (Query(query), body) = (query?, body?);
    let (origin, closing) = (origin(peer), query.closing(Closing::Refused));
    blocking(move || Ok(Json(switch.replace_tables(read::<RuleTables>(&body)?, origin, closing)?)))
}

async fn patch_tables(
    State(switch): Shared,
    peer: Option<Extension<Peer>>,
    query: Result<Query<TablesQuery>, QueryRejection>,
    body: Body,
) -> Result<Json<Loaded>, Failure> {
    let (Query(query), body) = (query?, body?);
    let (origin, closing) = (origin(peer), query.closing(Closing::RefusedIfKnown));
    blocking(move || {
        let TablesPatch { base, diff } = read(&body)?;
        Ok(Json(switch.change_tables(base, &diff, origin, closing)?))
    })
}

async fn delete_tables(State(switch): Shared) -> Result<Json<Loaded>, Failure> {
    blocking(move || Ok(Json(switch.delete_tables()?)))
}

async fn ports(State(switch): Shared) -> Json<Vec<PortInfo>> {
    Json(switch.ports())
}

async fn put_port(
    State(switch): Shared,
    name: Result<Path<String>, PathRejection>,
    body: Body,
) -> Result<Json<PortInfo>, Failure> {
    let (Path(name), body) = (name?, body?);
    blocking(move || Ok(Json(switch.put_port(&name, &read::<PortRequest>(&body)?)?)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeletePortQuery {
    detach: Option<bool>,
}

async fn delete_port(
    State(switch): Shared,
    name: Result<Path<String>, PathRejection>,
    query: Result<Query<DeletePortQuery>, QueryRejection>,
) -> Result<StatusCode, Failure> {
    let (Path(name), Query(query)) = (name?, query?);
    blocking(move || Ok(switch.delete_port(&name, query.detach)?))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn pods(State(switch): Shared) -> Json<Vec<PodInfo>> {
    Json(switch.pods())
}

async fn put_pod(
    State(switch): Shared,
    name: Result<Path<(String, String)>, PathRejection>,
    body: Body,
) -> Result<Json<PodInfo>, Failure> {
    let (Path((namespace, name)), body) = (name?, body?);
    let pod = PodName::new(namespace, name);
    blocking(move || Ok(Json(switch.put_pod(&pod, &read::<PodRequest>(&body)?)?)))
}

async fn delete_pod(
    State(switch): Shared,
    name: Result<Path<(String, String)>, PathRejection>,
) -> Result<StatusCode, Failure> {
    let Path((namespace, name)) = name?;
    blocking(move || Ok(switch.delete_pod(&PodName::new(namespace, name))?))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn counters(State(switch): Shared) -> Result<Json<CountersReport>, Failure> {
    blocking(move || Ok(Json(switch.counters())))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowsQuery {
    max: Option<usize>,
    pod: Option<PodName>,
}

async fn flows(
    State(switch): Shared,
    query: Result<Query<FlowsQuery>, QueryRejection>,
) -> Result<Json<Vec<FlowInfo>>, Failure> {
    let Query(query) = query?;
    let max = query.max.unwrap_or(FLOWS_DEFAULT);
    blocking(move || Ok(Json(switch.flows(max, query.pod.as_ref())?)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainQuery {
    from: Endpoint,
    to: Endpoint,
    #[serde(default = "tcp")]
    protocol: Protocol,
    port: Option<u16>,
}

fn tcp() -> Protocol {
    Protocol::TCP
}

async fn explain(
    State(switch): Shared,
    query: Result<Query<ExplainQuery>, QueryRejection>,
) -> Result<Json<Vec<PathReport>>, Failure> {
    let Query(ExplainQuery { from, to, protocol, port }) = query?;
    blocking(move || Ok(Json(switch.explain([&from, &to], protocol, port)?)))
}

/// Refuses a body that says itself that it is too large, rather than receiving it up to the limit first.
async fn refuse_announced_excess(headers: HeaderMap, request: Request, next: Next) -> Response {
    let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > CONTROL_BODY_BYTES_MAX as u64) {
        return Failure::too_large().into_response();
    }
    next.run(request).await
}

async fn unknown_route(uri: Uri) -> Failure {
    let path = uri.path();
    Failure::new(
        StatusCode::NOT_FOUND,
        format!("there is nothing at {path}: the control socket serves /v1/status and others"),
    )
}

async fn wrong_method(method: Method, uri: Uri) -> Failure {
    let path = uri.path();
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, format!("{path} does not take {method}"))
}

/// An error as it goes over the socket.
#[derive(Debug)]
struct Failure {
    status: StatusCode,
    error: String,
}

impl Failure {
    fn new(status: StatusCode, error: impl Into<String>) -> Failure {
        Failure { status, error: error.into() }
    }

    fn too_large() -> Failure {
        let error = format!("the body is larger than {CONTROL_BODY_BYTES_MAX} bytes, the limit");
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(Problem { error: self.error })).into_response()
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Failure::new(status, refusal.to_string())
    }
}

impl From<BytesRejection> for Failure {
    fn from(rejection: BytesRejection) -> Failure {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Failure::too_large(),
            status => Failure::new(status, rejection.body_text()),
        }
    }
}

impl From<PathRejection> for Failure {
    fn from(rejection: PathRejection) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, rejection.body_text())
    }
}

impl From<QueryRejection> for Failure {
    fn from(rejection: QueryRejection) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, rejection.body_text())
    }
}

/// Reads a body as JSON, whatever its content type says: the socket speaks nothing else.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    // Keeping the path of a mistake, as axum does, takes as long again as reading: only what is wrong is read so.
    if let Ok(value) = serde_json::from_slice(body) {
        return Ok(value);
    }
    match Json::from_bytes(body) {
        Ok(Json(value)) => Ok(value),
        Err(rejection) => Err(Failure::new(StatusCode::BAD_REQUEST, rejection.body_text())),
    }
}

/// Runs what may wait for the workers, at once and on this thread, which leaves the other requests to another one.
fn blocking<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    tokio::task::block_in_place(|| catch_unwind(AssertUnwindSafe(work))).unwrap_or_else(|_| {
        tracing::error!("a request failed");
        let error = "the switch failed at this request and goes on: its log says more".to_owned();
        Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error))
    })
}

//! Request handlers, one for each line of the table in [`protocol`](crate::control::protocol).

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post, put};
use axum::{Extension, Router};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::peer::Peer;
use crate::control::explain::PathReport;
use crate::control::protocol::{
    AclReport, CaptureReport, CaptureStarted, Checked, ClassesReport, CountersReport, DropsReport, FlowQuery,
    FlowsEnded, FlowsReport, Loaded, PacketFilter, PodInfo, PodRequest, PoliciesReport, PolicyOrigin,
    PortInfo, PortRequest, Problem, ReloadRequested, RouteInfo, Status, TablesPatch, TablesSummary,
};
use crate::control::{ApiError, CoverageCheck, DropQuery, Switch};
use crate::dataplane::WorkerTimes;
use crate::limits::CONTROL_BODY_BYTES_MAX;
use crate::net::flow::Protocol;
use crate::policy::testcase::Endpoint;
use crate::tables::{PodName, RuleTables};

/// Routes of the control API, with those of other modules.
pub(super) fn router(switch: Arc<Switch>, others: Router<Arc<Switch>>) -> Router {
    summaries()
        .merge(others)
        .route("/v1/tables", get(tables).put(put_tables).patch(patch_tables).delete(delete_tables))
        .route("/v1/tables/check", post(check_tables))
        .route("/v1/acls/{namespace}/{name}", get(acl))
        .route("/v1/classes", get(classes))
        .route("/v1/policies", get(policies))
        .route("/v1/routes", get(routes))
        .route("/v1/tables/document", get(tables_document))
        .route("/v1/ports/{name}", put(put_port).delete(delete_port))
        .route("/v1/pods/{namespace}/{name}", put(put_pod).delete(delete_pod))
        .route("/v1/reload", post(reload))
        .route("/v1/captures", post(start_capture))
        .route("/v1/captures/{number}", get(fetch_capture).delete(stop_capture))
        .route("/v1/workers", get(worker_times))
        .route("/v1/drops", get(drops))
        .route("/v1/flows", get(flows).delete(flush_flows))
        .route("/v1/flows/events", get(flow_events))
        .route("/v1/explain", get(explain))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(CONTROL_BODY_BYTES_MAX))
        .layer(from_fn(refuse_announced_excess))
        .with_state(switch)
}

/// Routes whose responses are short and cheap, and which change nothing.
pub(super) fn summaries() -> Router<Arc<Switch>> {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/ports", get(ports))
        .route("/v1/pods", get(pods))
        .route("/v1/counters", get(counters))
}

pub(super) fn origin(peer: Option<Extension<Peer>>) -> PolicyOrigin {
    let peer = peer.map(|Extension(peer)| peer);
    PolicyOrigin::control_socket(peer.and_then(Peer::uid), peer.and_then(Peer::pid))
}

pub(super) type Shared = State<Arc<Switch>>;
pub(super) type Body = Result<Bytes, BytesRejection>;

async fn status(State(switch): Shared) -> Json<Status> {
    Json(switch.status())
}

async fn tables(State(switch): Shared) -> Json<TablesSummary> {
    Json(switch.tables_summary())
}

async fn tables_document(State(switch): Shared) -> Result<Response, HttpError> {
    let tables = switch.tables().ok_or(ApiError::NoTables)?;
    // Serializing large tables takes a while, and must not block the thread that serves the other
    // connections.
    run_blocking(move || Ok(Json(&*tables).into_response()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TablesQuery {
    #[serde(default)]
    allow_empty: bool,
}

impl TablesQuery {
    pub(super) fn coverage(&self, otherwise: CoverageCheck) -> CoverageCheck {
        if self.allow_empty { CoverageCheck::Skip } else { otherwise }
    }
}

async fn put_tables(
    State(switch): Shared,
    peer: Option<Extension<Peer>>,
    query: Result<Query<TablesQuery>, QueryRejection>,
    body: Body,
) -> Result<Json<Loaded>, HttpError> {
    let (Query(query), body) = (query?, body?);
    let (origin, coverage) = (origin(peer), query.coverage(CoverageCheck::Require));
    run_blocking(move || {
        Ok(Json(switch.replace_tables(parse_body::<RuleTables>(&body)?, origin, coverage)?))
    })
}

async fn check_tables(
    State(switch): Shared,
    query: Result<Query<TablesQuery>, QueryRejection>,
    body: Body,
) -> Result<Json<Checked>, HttpError> {
    let (Query(query), body) = (query?, body?);
    let coverage = query.coverage(CoverageCheck::Require);
    run_blocking(move || Ok(Json(switch.check_tables(&parse_body(&body)?, coverage)?)))
}

async fn acl(
    State(switch): Shared,
    name: Result<Path<(String, String)>, PathRejection>,
) -> Result<Json<AclReport>, HttpError> {
    let Path((namespace, name)) = name?;
    run_blocking(move || Ok(Json(switch.acl(&PodName::new(namespace, name))?)))
}

async fn classes(State(switch): Shared) -> Result<Json<ClassesReport>, HttpError> {
    run_blocking(move || Ok(Json(switch.classes())))
}

async fn policies(State(switch): Shared) -> Result<Json<PoliciesReport>, HttpError> {
    run_blocking(move || Ok(Json(switch.policies())))
}

async fn routes(State(switch): Shared) -> Result<Json<Vec<RouteInfo>>, HttpError> {
    run_blocking(move || Ok(Json(switch.routes())))
}

async fn patch_tables(
    State(switch): Shared,
    peer: Option<Extension<Peer>>,
    query: Result<Query<TablesQuery>, QueryRejection>,
    body: Body,
) -> Result<Json<Loaded>, HttpError> {
    let (Query(query), body) = (query?, body?);
    let (origin, coverage) = (origin(peer), query.coverage(CoverageCheck::RequireIfCovered));
    run_blocking(move || {
        let TablesPatch { base, diff } = parse_body(&body)?;
        Ok(Json(switch.change_tables(base, &diff, origin, coverage)?))
    })
}

async fn delete_tables(State(switch): Shared) -> Result<Json<Loaded>, HttpError> {
    run_blocking(move || Ok(Json(switch.delete_tables()?)))
}

async fn ports(State(switch): Shared) -> Json<Vec<PortInfo>> {
    Json(switch.ports())
}

async fn put_port(
    State(switch): Shared,
    name: Result<Path<String>, PathRejection>,
    body: Body,
) -> Result<Json<PortInfo>, HttpError> {
    let (Path(name), body) = (name?, body?);
    run_blocking(move || Ok(Json(switch.put_port(&name, &parse_body::<PortRequest>(&body)?)?)))
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
) -> Result<StatusCode, HttpError> {
    let (Path(name), Query(query)) = (name?, query?);
    run_blocking(move || Ok(switch.delete_port(&name, query.detach)?))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn pods(State(switch): Shared) -> Json<Vec<PodInfo>> {
    Json(switch.pods())
}

async fn put_pod(
    State(switch): Shared,
    name: Result<Path<(String, String)>, PathRejection>,
    body: Body,
) -> Result<Json<PodInfo>, HttpError> {
    let (Path((namespace, name)), body) = (name?, body?);
    let pod = PodName::new(namespace, name);
    run_blocking(move || Ok(Json(switch.put_pod(&pod, &parse_body::<PodRequest>(&body)?)?)))
}

async fn delete_pod(
    State(switch): Shared,
    name: Result<Path<(String, String)>, PathRejection>,
) -> Result<StatusCode, HttpError> {
    let Path((namespace, name)) = name?;
    run_blocking(move || Ok(switch.delete_pod(&PodName::new(namespace, name))?))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn counters(State(switch): Shared) -> Result<Json<CountersReport>, HttpError> {
    run_blocking(move || Ok(Json(switch.counters())))
}

async fn reload(State(switch): Shared) -> Result<Json<ReloadRequested>, HttpError> {
    Ok(Json(switch.request_reload()?))
}

async fn start_capture(State(switch): Shared, body: Body) -> Result<Json<CaptureStarted>, HttpError> {
    let body = body?;
    run_blocking(move || Ok(Json(switch.start_capture(&parse_body(&body)?)?)))
}

async fn fetch_capture(
    State(switch): Shared,
    number: Result<Path<u64>, PathRejection>,
) -> Result<Json<CaptureReport>, HttpError> {
    let Path(number) = number?;
    run_blocking(move || Ok(Json(switch.fetch_capture(number)?)))
}

async fn stop_capture(
    State(switch): Shared,
    number: Result<Path<u64>, PathRejection>,
) -> Result<StatusCode, HttpError> {
    let Path(number) = number?;
    run_blocking(move || Ok(switch.stop_capture(number)?))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn worker_times(State(switch): Shared) -> Result<Json<Vec<WorkerTimes>>, HttpError> {
    run_blocking(move || Ok(Json(switch.worker_times())))
}

async fn drops(State(switch): Shared, uri: Uri) -> Result<Json<DropsReport>, HttpError> {
    let (filter, query) = filtered::<DropQuery>(&uri)?;
    run_blocking(move || Ok(Json(switch.drops(&DropQuery { filter, ..query })?)))
}

/// Parameters of a request: those of a filter, and the others.
fn filtered<T: DeserializeOwned>(uri: &Uri) -> Result<(PacketFilter, T), HttpError> {
    let parameters = uri.query().unwrap_or_default().split('&').filter(|parameter| !parameter.is_empty());
    let is_of_filter = |parameter: &&str| {
        parameter.split('=').next().is_some_and(|name| PacketFilter::PARAMETERS.contains(&name))
    };
    let (of_filter, others): (Vec<&str>, Vec<&str>) = parameters.partition(is_of_filter);
    let query = |parameters: Vec<&str>| {
        let query = format!("/?{}", parameters.join("&"));
        Uri::try_from(query).map_err(|error| HttpError::new(StatusCode::BAD_REQUEST, error.to_string()))
    };
    let Query(filter) = Query::try_from_uri(&query(of_filter)?)?;
    let Query(others) = Query::try_from_uri(&query(others)?)?;
    Ok((filter, others))
}

fn flow_query(uri: &Uri) -> Result<FlowQuery, HttpError> {
    let (filter, query) = filtered::<FlowQuery>(uri)?;
    Ok(FlowQuery { filter, ..query })
}

async fn flows(State(switch): Shared, uri: Uri) -> Result<Json<FlowsReport>, HttpError> {
    let query = flow_query(&uri)?;
    run_blocking(move || Ok(Json(switch.flows(&query)?)))
}

async fn flush_flows(State(switch): Shared, uri: Uri) -> Result<Json<FlowsEnded>, HttpError> {
    let query = flow_query(&uri)?;
    run_blocking(move || Ok(Json(switch.flush_flows(&query)?)))
}

async fn flow_events(
    State(switch): Shared,
    peer: Option<Extension<Peer>>,
    uri: Uri,
) -> Result<Response, HttpError> {
    let query = flow_query(&uri)?;
    // The clients of the control socket alone have credentials here.
    let only_reads = peer.is_none();
    let stream = run_blocking(move || Ok(switch.follow_flows(&query, only_reads)?))?;
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], axum::body::Body::new(stream)).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainQuery {
    from: Endpoint,
    to: Endpoint,
    #[serde(default = "tcp")]
    protocol: Protocol,
    port: Option<u16>,
    backend: Option<SocketAddr>,
}

fn tcp() -> Protocol {
    Protocol::TCP
}

pub(super) async fn explain(
    State(switch): Shared,
    query: Result<Query<ExplainQuery>, QueryRejection>,
) -> Result<Json<Vec<PathReport>>, HttpError> {
    let Query(ExplainQuery { from, to, protocol, port, backend }) = query?;
    run_blocking(move || Ok(Json(switch.explain([&from, &to], protocol, port, backend)?)))
}

/// Rejects a body by its announced length, before any of it is received.
async fn refuse_announced_excess(headers: HeaderMap, request: Request, next: Next) -> Response {
    let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > CONTROL_BODY_BYTES_MAX as u64) {
        return HttpError::too_large().into_response();
    }
    next.run(request).await
}

async fn unknown_route(uri: Uri) -> HttpError {
    let path = uri.path();
    HttpError::new(
        StatusCode::NOT_FOUND,
        format!("there is nothing at {path}: the control socket serves /v1/status and others"),
    )
}

async fn wrong_method(method: Method, uri: Uri) -> HttpError {
    let path = uri.path();
    HttpError::new(StatusCode::METHOD_NOT_ALLOWED, format!("{path} does not take {method}"))
}

/// Error response.
#[derive(Debug)]
pub(super) struct HttpError {
    status: StatusCode,
    error: String,
}

impl HttpError {
    pub(super) fn new(status: StatusCode, error: impl Into<String>) -> HttpError {
        HttpError { status, error: error.into() }
    }

    fn too_large() -> HttpError {
        let error = format!("the body is larger than {CONTROL_BODY_BYTES_MAX} bytes, the limit");
        HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, error)
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        (self.status, Json(Problem { error: self.error })).into_response()
    }
}

impl From<ApiError> for HttpError {
    fn from(error: ApiError) -> HttpError {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        HttpError::new(status, error.to_string())
    }
}

impl From<BytesRejection> for HttpError {
    fn from(rejection: BytesRejection) -> HttpError {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => HttpError::too_large(),
            status => HttpError::new(status, rejection.body_text()),
        }
    }
}

impl From<PathRejection> for HttpError {
    fn from(rejection: PathRejection) -> HttpError {
        HttpError::new(StatusCode::BAD_REQUEST, rejection.body_text())
    }
}

impl From<QueryRejection> for HttpError {
    fn from(rejection: QueryRejection) -> HttpError {
        HttpError::new(StatusCode::BAD_REQUEST, rejection.body_text())
    }
}

/// Parses a body as JSON, regardless of its content type.
pub(super) fn parse_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, HttpError> {
    // Tracking the path of a mistake, as axum does, doubles the time of parsing. Only an invalid body is
    // parsed that way.
    if let Ok(value) = serde_json::from_slice(body) {
        return Ok(value);
    }
    match Json::from_bytes(body) {
        Ok(Json(value)) => Ok(value),
        Err(rejection) => Err(HttpError::new(StatusCode::BAD_REQUEST, rejection.body_text())),
    }
}

/// Runs work that may wait for the workers on this thread. The runtime moves the other connections to another
/// thread.
pub(super) fn run_blocking<T>(work: impl FnOnce() -> Result<T, HttpError>) -> Result<T, HttpError> {
    tokio::task::block_in_place(|| catch_unwind(AssertUnwindSafe(work))).unwrap_or_else(|_| {
        tracing::error!("a request failed");
        let error = "the switch failed at this request and goes on: its log says more".to_owned();
        Err(HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, error))
    })
}

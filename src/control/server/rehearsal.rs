//! Requests about candidate tables: shadowed policy and audited policies.

use std::sync::Arc;

use axum::extract::Query;
use axum::extract::State;
use axum::extract::rejection::QueryRejection;
use axum::http::StatusCode;
use axum::response::Json;
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde::Deserialize;

use super::handlers::{Body, HttpError, Shared, TablesQuery, origin, parse_body, run_blocking};
use super::peer::Peer;
use crate::control::protocol::{AuditReport, Loaded, ShadowReport};
use crate::control::{ApiError, CoverageCheck, Switch};
use crate::tables::RuleTables;

/// Routes of candidate tables.
pub(super) fn routes() -> Router<Arc<Switch>> {
    Router::new()
        .route("/v1/shadow", get(report).put(load).delete(forget))
        .route("/v1/shadow/promote", post(promote))
        .route("/v1/audit", get(audit).put(put_audit).patch(patch_audit).delete(clear_audit))
}

async fn report(State(switch): Shared) -> Result<Json<ShadowReport>, HttpError> {
    run_blocking(move || Ok(Json(switch.rehearsal.report(switch.candidates()?)?)))
}

async fn load(
    State(switch): Shared,
    peer: Option<Extension<Peer>>,
    query: Result<Query<TablesQuery>, QueryRejection>,
    body: Body,
) -> Result<Json<ShadowReport>, HttpError> {
    let (Query(query), body) = (query?, body?);
    let (origin, coverage) = (origin(peer), query.coverage(CoverageCheck::Require));
    run_blocking(move || {
        let candidates = switch.candidates()?;
        let tables: RuleTables = parse_body(&body)?;
        let state = switch.state.load_full();
        state.check_coverage(&tables, coverage, switch.settings.fail_open)?;
        tables.check().map_err(ApiError::from)?;
        switch.rehearsal.load(tables, origin, &state, candidates);
        Ok(Json(switch.rehearsal.report(candidates)?))
    })
}

async fn forget(State(switch): Shared) -> Result<StatusCode, HttpError> {
    run_blocking(move || Ok(switch.rehearsal.forget(None)?))?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PromoteQuery {
    #[serde(default)]
    allow_empty: bool,
    #[serde(default)]
    replace: bool,
}

/// Enforces the candidate in place of the tables in force.
async fn promote(
    State(switch): Shared,
    query: Result<Query<PromoteQuery>, QueryRejection>,
) -> Result<Json<Loaded>, HttpError> {
    let Query(PromoteQuery { allow_empty, replace }) = query?;
    let coverage = if allow_empty { CoverageCheck::Skip } else { CoverageCheck::Require };
    run_blocking(move || {
        let (tables, origin, base) = switch.rehearsal.tables()?;
        let base = Some(base).filter(|_| !replace);
        let loaded = switch.replace_tables_of(base, RuleTables::clone(&tables), origin, coverage)?;
        // Another client may have loaded a candidate meanwhile, which stays.
        let _ = switch.rehearsal.forget(Some(&tables));
        Ok(Json(loaded))
    })
}

async fn audit(State(switch): Shared) -> Result<Json<AuditReport>, HttpError> {
    run_blocking(move || Ok(Json(switch.audit_report())))
}

async fn put_audit(State(switch): Shared, body: Body) -> Result<Json<AuditReport>, HttpError> {
    let body = body?;
    run_blocking(move || Ok(Json(switch.put_audit(parse_body(&body)?)?)))
}

async fn patch_audit(State(switch): Shared, body: Body) -> Result<Json<AuditReport>, HttpError> {
    let body = body?;
    run_blocking(move || Ok(Json(switch.patch_audit(parse_body(&body)?)?)))
}

async fn clear_audit(State(switch): Shared) -> StatusCode {
    switch.clear_audit();
    StatusCode::NO_CONTENT
}

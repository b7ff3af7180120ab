//! Tests of the agent that follows the Kubernetes API, on a fake API server. They need no privilege.

mod commands;
mod faults;
mod fixture;
mod histories;
mod hostile;
mod kubectl;
mod real;
mod real_server;
mod recorded;
mod routes;
mod server;
mod services;
#[path = "../common/tools.rs"]
mod tools;

//! Tests of the agent that follows the Kubernetes API, on a fake API server. They need no privilege.

mod commands;
mod conditions;
mod faults;
mod fixture;
mod histories;
mod hostile;
mod kubectl;
#[path = "../common/random.rs"]
#[allow(dead_code)] // Other tests use the rest.
mod random;
mod real;
mod real_server;
mod recorded;
mod rights;
mod routes;
mod server;
mod services;
#[path = "../common/tools.rs"]
mod tools;
#[path = "../common/yaml.rs"]
mod yaml;

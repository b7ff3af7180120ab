//! Agent within the switch (`source = "kubernetes"`).

use std::collections::BTreeSet;
use std::env;
use std::sync::Arc;
use std::thread::Scope;

use super::agent::host_name;
use crate::cli::CliError;
use crate::config::{Config, Policy, SourceKind};
use crate::control::Switch;
use crate::source::Requests;
use crate::source::kubernetes::{Access, Lock, Settings, SwitchTarget, run};
use crate::threads;

/// Takes the lock of the agent, if the configuration has one.
pub(super) fn lock(config: &Config) -> Result<Option<Lock>, CliError> {
    let follows = config.policy.source == SourceKind::Kubernetes;
    let lock = follows.then(|| Lock::take(&config.control.socket)).transpose();
    lock.map_err(|error| CliError::Message(error.to_string()))
}

/// Starts the thread of the agent, which ends with a request to stop.
pub(super) fn spawn<'scope, 'env: 'scope>(
    scope: &'scope Scope<'scope, 'env>,
    switch: &'scope Switch,
    policy: &Policy,
    requests: &Requests,
    mut lock: Lock,
) {
    let node = policy.node.clone().or_else(|| env::var("NODE_NAME").ok());
    let settings = Settings {
        access: Access { kubeconfig: policy.kubeconfig.clone(), context: None },
        node: Some(node.unwrap_or_else(host_name)),
        ..Settings::default()
    };
    let stop = Arc::clone(requests.stopping());
    let follow = move || {
        crate::control::avoid_worker_cores(&switch.status().cores);
        // Routes end with the process, so that the lock names none.
        let _ = lock.record(&BTreeSet::new());
        run(&settings, &mut SwitchTarget::new(switch), &mut |_| {}, &stop)
            .expect("the kernel gives a thread");
    };
    scope.spawn(|| threads::vital("palisade-agent", follow));
}

//! Changes of one pod at a time: the time to the next tables, and the entries of the difference.

use std::time::{Duration, Instant};

use palisade::policy::objects::Object;
use palisade::policy::{Change, Compiler, ObjectName};
use serde_json::{Value, json};

use crate::cluster::{APPS, Cluster, on_first_node};
use crate::common::latency::Latencies;
use crate::common::statistics::{quantile, rounded};

/// Adds, relabels or removes one pod at a time, anywhere in the cluster or only on the node of the tables.
pub(crate) fn measure(smoke: bool, local: bool) -> Value {
    let pods = if smoke { 1_000 } else { 10_000 };
    let mut cluster = Cluster::new(pods);
    let mut compiler = Compiler::from_objects(cluster.objects(), on_first_node());
    let mut kinds: [Vec<(Duration, usize)>; 3] = Default::default();
    for round in 0..if smoke { 60 } else { 6_000 } {
        let kind = round % 3;
        let change = match kind {
            0 => {
                let pod = cluster.new_pod(local.then_some(0));
                cluster.pods.push(pod.clone());
                Change::Upsert(Object::Pod(pod))
            }
            1 => {
                let at = cluster.any_pod(local);
                let app = cluster.random.below(APPS);
                cluster.pods[at].labels.insert("app".to_owned(), format!("app-{app}"));
                Change::Upsert(Object::Pod(cluster.pods[at].clone()))
            }
            _ => {
                let at = cluster.any_pod(local);
                Change::Remove(ObjectName::Pod(cluster.pods.swap_remove(at).name))
            }
        };
        let start = Instant::now();
        let difference = compiler.apply(change);
        kinds[kind].push((start.elapsed(), difference.len()));
    }
    let figures = |samples: &[(Duration, usize)]| {
        let times: Latencies = samples.iter().map(|(time, _)| *time).collect();
        let mut entries: Vec<f64> = samples.iter().map(|(_, entries)| *entries as f64).collect();
        let ms = |us: f64| rounded(us / 1e3, 4);
        let mut entries = |share| quantile(&mut entries, share).map(|entries| entries as usize);
        json!({
            "ms": ms(times.us(0.5)), "p99_ms": ms(times.us(0.99)), "max_ms": ms(times.max_us()),
            "entries": entries(0.5), "p99_entries": entries(0.99), "max_entries": entries(1.0),
        })
    };
    let [added, relabelled, removed] = kinds.each_ref().map(|samples| figures(samples));
    let all: Vec<(Duration, usize)> = kinds.into_iter().flatten().collect();
    let mut line = figures(&all);
    let more = json!({"pods": pods, "policies": cluster.policies(), "added": added, "relabelled": relabelled, "removed": removed});
    line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    line
}

//! Random changes with faults end in the tables of the final objects.

use std::time::Duration;

use serde_json::Value;

use crate::fixture::{Agent, admin_policy, namespace, node, pod, policy, service, slice, small_cluster};
use crate::server::ApiServer;

/// Generator of numbers from a seed (`SplitMix64`).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

fn object(random: &mut Random) -> Value {
    const APPS: [&str; 3] = ["db", "web", "cache"];
    let number = random.below(6);
    match random.below(12) {
        0 => namespace(random.pick(&["shop", "other"])),
        1 => node(random.pick(&["n1", "n2", "n3"]), &["10.3.0.0/24"], &format!("192.0.2.{}", 1 + number)),
        2 => admin_policy(random.pick(&["one", "two"]), random.below(1000) as u32),
        10 => service(&format!("service-{}", number % 3), &format!("10.96.0.{}", random.below(3))),
        11 => {
            let service = format!("service-{}", random.below(3));
            slice(&format!("slice-{number}"), &service, &[&format!("10.1.0.{}", 1 + random.below(9))])
        }
        3..6 => policy(random.pick(&["a", "b", "c"]), random.pick(&APPS), random.pick(&APPS)),
        _ => {
            let address = format!("10.1.{}.{}", random.below(2), 1 + random.below(20));
            pod(&format!("pod-{number}"), random.pick(&["n1", "n2"]), random.pick(&APPS), &address)
        }
    }
}

fn fault(random: &mut Random, server: &ApiServer) {
    match random.below(9) {
        0 => server.cut(),
        1 => server.compact(),
        2 => {
            server.compact();
            server.cut();
        }
        3 => server.set(|faults| faults.is_away = !faults.is_away),
        4 => server.set(|faults| faults.refuses_streams = !faults.refuses_streams),
        5 => server.set(|faults| faults.expires_pages = !faults.expires_pages),
        6 => server.set(|faults| faults.is_stalled = !faults.is_stalled),
        7 => {
            let status = (
                random.pick(&["pods", "networkpolicies", "nodes", "services", "endpointslices"]),
                random.pick(&[401, 403, 429, 500]),
            );
            server.set(|faults| faults.statuses = vec![status]);
        }
        _ => server.bookmark(),
    }
}

#[test]
fn random_changes_with_faults_end_in_the_tables_of_the_final_objects() {
    for seed in 0..6 {
        let mut random = Random(seed);
        let server = ApiServer::start();
        small_cluster(&server);
        let agent = Agent::start(&server);
        for step in 0..150 {
            let object = object(&mut random);
            if random.below(4) == 0 {
                server.delete(&object);
            } else {
                server.put(object);
            }
            if random.below(6) == 0 {
                fault(&mut random, &server);
            }
            if random.below(12) == 0 {
                std::thread::sleep(Duration::from_millis(random.below(30)));
            }
            if step % 50 == 49 {
                server.set(|faults| *faults = crate::server::Faults::default());
                server.cut();
                agent.converges(&server);
            }
        }
    }
}

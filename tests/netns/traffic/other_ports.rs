//! Tests of this folder with pods on tap devices, and with offloaded pods: those in which the kind of the port takes part.

use palisade::lab::PodPorts;

use super::{bandwidth, forwarding, fragments, jumbo, kernel_drops, ping, policy, reject, tcp_resets};
use crate::support::isolated;

/// Tests that run a body of another module with other ports than veth pairs.
macro_rules! with_other_ports {
    ($($test:ident: $body:path;)*) => {
        mod on_taps {
            use super::*;

            $(
                #[test]
                fn $test() {
                    run($body, PodPorts::Tap);
                }
            )*
        }

        mod offloaded {
            use super::*;

            $(
                #[test]
                fn $test() {
                    run($body, PodPorts::Offload);
                }
            )*
        }
    };
}

fn run(body: fn(PodPorts), ports: PodPorts) {
    let Some(_isolated) = isolated() else { return };
    body(ports);
}

with_other_ports! {
    tcp_udp_and_ping_cross_intact_in_both_families: forwarding::crosses;
    with_two_workers_flows_cross_between_queues_and_none_is_lost: forwarding::two_workers;
    large_datagrams_cross_both_ways: fragments::large_datagrams_cross;
    policy_denies_every_fragment_of_a_large_datagram: fragments::denied_fragments;
    frames_that_a_worker_is_too_slow_for_are_counted_once: kernel_drops::counted_once;
    a_transfer_beyond_the_rate_of_its_pod_arrives_whole: bandwidth::limited;
    packets_of_the_largest_mtu_cross_intact: jumbo::bulk_crosses;
    a_worker_that_sleeps_wakes_for_the_first_packet: ping::wakes;
    ping_passes_where_all_ports_are_open_and_not_where_one_is: ping::pings;
    a_denied_connection_is_dropped_and_counted_under_its_policy: policy::denied_connection;
    a_pod_that_sends_from_another_address_is_not_heard: policy::spoofs;
    a_connection_ends_with_a_change_that_denies_it: policy::changed_policy;
    senders_of_denied_packets_are_told: reject::told;
    a_connection_that_its_owner_resets_ends_its_flow: tcp_resets::owner_resets;
    a_reset_that_is_not_exact_ends_nothing: tcp_resets::forged_resets;
}

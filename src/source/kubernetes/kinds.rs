//! Kinds of objects that are followed: their paths, and the fields that are kept of them.

use super::filter::Keep;

/// Kind of objects.
#[derive(Debug)]
pub(super) struct Kind {
    /// Name, as in manifests.
    pub(super) name: &'static str,
    /// Group; empty for the core.
    pub(super) group: &'static str,
    /// Versions that are read alike, the one that is asked for first.
    pub(super) versions: &'static [&'static str],
    /// Resource in paths and in rights.
    pub(super) plural: &'static str,
    /// Whether a cluster may lack it, because a custom resource defines it.
    pub(super) is_custom: bool,
    /// Fields that are kept of a page of a list.
    pub(super) list: Keep,
    /// Fields that are kept of an event of a watch.
    pub(super) event: Keep,
}

impl Kind {
    /// `apiVersion` of objects of a version.
    pub(super) fn api_version(&self, version: &str) -> String {
        if self.group.is_empty() { version.to_owned() } else { format!("{}/{version}", self.group) }
    }

    /// Whether the agent writes `status.conditions` of its objects: the policies of the cluster.
    pub(super) fn has_conditions(&self) -> bool {
        self.group == "policy.networking.k8s.io"
    }

    /// Path of all objects of the kind in a version.
    pub(super) fn path(&self, version: &str) -> String {
        if self.group.is_empty() {
            format!("/api/{version}/{}", self.plural)
        } else {
            format!("/apis/{}/{version}/{}", self.group, self.plural)
        }
    }

    /// Resource with its group, as in messages of the API server.
    pub(super) fn resource(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }
}

/// Annotation of the bookmark that ends the initial events of a streaming list.
pub(super) const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

const METADATA: Keep = Keep::Fields(&[
    ("name", Keep::All),
    ("namespace", Keep::All),
    ("uid", Keep::All),
    ("resourceVersion", Keep::All),
    ("generation", Keep::All),
    ("labels", Keep::All),
    ("annotations", Keep::Fields(&[("palisade.dev/mode", Keep::All), (INITIAL_EVENTS_END, Keep::All)])),
]);

const CONTAINER_PORTS: Keep =
    Keep::Each(&Keep::Fields(&[("name", Keep::All), ("containerPort", Keep::All), ("protocol", Keep::All)]));

const CONTAINERS: Keep = Keep::Each(&Keep::Fields(&[
    ("name", Keep::All),
    ("restartPolicy", Keep::All),
    ("ports", CONTAINER_PORTS),
]));

const POD_SPEC: Keep = Keep::Fields(&[
    ("nodeName", Keep::All),
    ("hostNetwork", Keep::All),
    ("containers", CONTAINERS),
    ("initContainers", CONTAINERS),
]);

const ADDRESSES: Keep = Keep::Each(&Keep::Fields(&[("ip", Keep::All)]));

const POD_STATUS: Keep = Keep::Fields(&[
    ("phase", Keep::All),
    ("podIP", Keep::All),
    ("podIPs", ADDRESSES),
    ("hostIP", Keep::All),
    ("hostIPs", ADDRESSES),
]);

const NODE_SPEC: Keep = Keep::Fields(&[("podCIDR", Keep::All), ("podCIDRs", Keep::All)]);

const NODE_STATUS: Keep =
    Keep::Fields(&[("addresses", Keep::Each(&Keep::Fields(&[("type", Keep::All), ("address", Keep::All)])))]);

const SERVICE_SPEC: Keep = Keep::Fields(&[
    ("type", Keep::All),
    ("clusterIP", Keep::All),
    ("clusterIPs", Keep::All),
    ("externalIPs", Keep::All),
    ("externalName", Keep::All),
    ("externalTrafficPolicy", Keep::All),
    ("healthCheckNodePort", Keep::All),
    ("internalTrafficPolicy", Keep::All),
    ("ipFamilies", Keep::All),
    ("ipFamilyPolicy", Keep::All),
    ("loadBalancerSourceRanges", Keep::All),
    (
        "ports",
        Keep::Each(&Keep::Fields(&[
            ("name", Keep::All),
            ("protocol", Keep::All),
            ("port", Keep::All),
            ("targetPort", Keep::All),
            ("nodePort", Keep::All),
        ])),
    ),
    ("publishNotReadyAddresses", Keep::All),
    ("selector", Keep::All),
    ("sessionAffinity", Keep::All),
    ("sessionAffinityConfig", Keep::Fields(&[("clientIP", Keep::Fields(&[("timeoutSeconds", Keep::All)]))])),
    ("trafficDistribution", Keep::All),
]);

const SERVICE_STATUS: Keep = Keep::Fields(&[(
    "loadBalancer",
    Keep::Fields(&[("ingress", Keep::Each(&Keep::Fields(&[("ip", Keep::All), ("ipMode", Keep::All)])))]),
)]);

const NAMES: Keep = Keep::Each(&Keep::Fields(&[("name", Keep::All)]));

const ENDPOINTS: Keep = Keep::Each(&Keep::Fields(&[
    ("addresses", Keep::All),
    ("conditions", Keep::Fields(&[("ready", Keep::All), ("serving", Keep::All), ("terminating", Keep::All)])),
    ("nodeName", Keep::All),
    ("hints", Keep::Fields(&[("forZones", NAMES), ("forNodes", NAMES)])),
]));

const ENDPOINT_PORTS: Keep =
    Keep::Each(&Keep::Fields(&[("name", Keep::All), ("protocol", Keep::All), ("port", Keep::All)]));

/// `metadata` of a list.
const LIST_METADATA: Keep = Keep::Fields(&[("resourceVersion", Keep::All), ("continue", Keep::All)]);

/// Kind whose objects keep `metadata` and these fields. An event may contain a `Status` instead, with `code` and
/// `message`.
macro_rules! kind {
    ($name:literal, $group:literal, [$($version:literal),+], $plural:literal, $is_custom:literal, [$($field:tt)*]) => {
        Kind {
            name: $name,
            group: $group,
            versions: &[$($version),+],
            plural: $plural,
            is_custom: $is_custom,
            list: Keep::Fields(&[
                ("metadata", LIST_METADATA),
                ("items", Keep::Items(&Keep::Fields(&[("metadata", METADATA), $($field)*]))),
            ]),
            event: Keep::Fields(&[
                ("type", Keep::All),
                (
                    "object",
                    Keep::Fields(&[
                        ("metadata", METADATA),
                        ("code", Keep::All),
                        ("message", Keep::All),
                        $($field)*
                    ]),
                ),
            ]),
        }
    };
}

/// Kinds that are followed. Policies keep their whole `spec`, so that a field that is unknown here is found.
pub(super) static KINDS: [Kind; 9] = [
    kind!("Namespace", "", ["v1"], "namespaces", false, []),
    kind!("Node", "", ["v1"], "nodes", false, [("spec", NODE_SPEC), ("status", NODE_STATUS)]),
    kind!("NetworkPolicy", "networking.k8s.io", ["v1"], "networkpolicies", false, [("spec", Keep::All)]),
    kind!(
        "ClusterNetworkPolicy",
        "policy.networking.k8s.io",
        ["v1alpha2", "v1beta1"],
        "clusternetworkpolicies",
        true,
        [("spec", Keep::All)]
    ),
    kind!(
        "AdminNetworkPolicy",
        "policy.networking.k8s.io",
        ["v1alpha1"],
        "adminnetworkpolicies",
        true,
        [("spec", Keep::All)]
    ),
    kind!(
        "BaselineAdminNetworkPolicy",
        "policy.networking.k8s.io",
        ["v1alpha1"],
        "baselineadminnetworkpolicies",
        true,
        [("spec", Keep::All)]
    ),
    kind!("Pod", "", ["v1"], "pods", false, [("spec", POD_SPEC), ("status", POD_STATUS)]),
    kind!("Service", "", ["v1"], "services", false, [("spec", SERVICE_SPEC), ("status", SERVICE_STATUS)]),
    kind!(
        "EndpointSlice",
        "discovery.k8s.io",
        ["v1"],
        "endpointslices",
        false,
        [("addressType", Keep::All), ("endpoints", ENDPOINTS), ("ports", ENDPOINT_PORTS)]
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_api() {
        let paths: Vec<String> = KINDS.iter().map(|kind| kind.path(kind.versions[0])).collect();
        assert!(paths.contains(&"/api/v1/pods".to_owned()));
        assert!(paths.contains(&"/apis/networking.k8s.io/v1/networkpolicies".to_owned()));
        assert_eq!(KINDS[2].resource(), "networkpolicies.networking.k8s.io");
    }
}

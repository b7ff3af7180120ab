//! Command `matrix`: forms of its output, and their sizes.

use super::{Scratch, policy};

#[test]
fn matrix_has_every_form() {
    let scratch = Scratch::new("matrix");
    scratch.write("policy.yaml", &policy("api", 5432, 5432));
    let forms = [
        ("table", "TCP 5432"),
        ("csv", "\"shop/api\",\"shop/db\",\"TCP 5432\""),
        ("dot", "[label=\"TCP 5432\"]"),
        ("html", "shop/api to shop/db: TCP 5432"),
    ];
    for (form, holds) in forms {
        let (code, printed, errors) =
            scratch.palisade(&format!("matrix pods.yaml policy.yaml --output {form}"));
        assert_eq!(code, 0, "{errors}");
        assert!(printed.contains(holds), "{form}: {printed}");
    }
    let json = scratch.json("matrix pods.yaml policy.yaml --output json");
    assert_eq!(json["ends"].as_array().unwrap().len(), 4, "three pods and the rest of the world");
    let alike = scratch.json("matrix pods.yaml --output json");
    assert_eq!(alike["ends"][0]["name"], "all pods");
    assert_eq!(
        scratch.json("matrix pods.yaml --each-pod --output json")["ends"].as_array().unwrap().len(),
        4
    );
}

/// Manifest of a policy that lets each of some addresses reach the database on a port of its own.
fn many_addresses(count: usize, ports: usize) -> String {
    use std::fmt::Write;
    let mut text = String::from(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: db, namespace: shop}\nspec:\n  \
         podSelector: {matchLabels: {app: db}}\n  ingress:\n",
    );
    for at in 0..count {
        let (high, low, port) = (at / 256, at % 256, at % ports + 1);
        writeln!(
            text,
            "  - {{from: [{{ipBlock: {{cidr: 198.18.{high}.{low}/32}}}}], ports: [{{port: {port}}}]}}"
        )
        .unwrap();
    }
    text
}

#[test]
fn matrix_stays_small_where_policy_tells_many_addresses_apart() {
    let scratch = Scratch::new("many");
    scratch.write("policy.yaml", &many_addresses(5_000, 5_000));
    for (form, limit) in [("table", 1_000), ("csv", 100_000), ("dot", 100_000), ("html", 40_000)] {
        let (code, printed, errors) =
            scratch.palisade(&format!("matrix pods.yaml policy.yaml --output {form}"));
        assert_eq!(code, 0, "{errors}");
        assert!(printed.len() < 300 * limit && printed.len() < 8 << 20, "{form}: {} bytes", printed.len());
        let told = if form == "html" { &printed } else { &errors };
        assert_eq!(
            told.contains("lines are left out"),
            form == "table" || form == "html",
            "{form}: {errors}"
        );
    }
    let json = scratch.json("matrix pods.yaml policy.yaml --output json --limit 100");
    let (kept, left_out) = (json["ends"].as_array().unwrap().len(), &json["left_out"]["ends"]);
    assert_eq!(kept as u64 + left_out.as_u64().unwrap(), 5_003);
    assert!(json["cells"].as_array().unwrap().len() <= 100);
    let json = scratch.json("matrix pods.yaml policy.yaml --output json --pod shop/db");
    assert!(json.get("left_out").is_none());
    let is_db = |cell: &serde_json::Value| [&cell["from"], &cell["to"]].iter().any(|end| **end == 0);
    assert!(json["ends"][0]["name"] == "shop/db" && json["cells"].as_array().unwrap().iter().all(is_db));
    let (code, _, errors) = scratch.palisade("matrix pods.yaml policy.yaml --pod shop/dbx");
    assert!(code == 2 && errors.contains("there is no pod shop/dbx"), "{errors}");
}

#[test]
fn matrix_puts_together_what_reaches_and_is_reached_alike() {
    let scratch = Scratch::new("alike");
    scratch.write("policy.yaml", &many_addresses(200, 4));
    let json = scratch.json("matrix pods.yaml policy.yaml --output json");
    // Endpoint groups: db; api and web; the addresses of each of four ports; all others.
    let names: Vec<&str> =
        json["ends"].as_array().unwrap().iter().map(|end| end["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 7, "{names:?}");
    assert!(names[6].starts_with("198.18.0.") || names[2].starts_with("0.0.0.0/0 except"), "{names:?}");
    assert!(names.iter().all(|name| name.len() < 200), "{names:?}");
    let addresses: usize = json["ends"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|end| Some(end["addresses"].as_array()?.len()))
        .sum();
    assert_eq!(addresses, 202, "every address is in the JSON");
}

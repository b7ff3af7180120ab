use super::*;

fn one(text: &str) -> Node<'_> {
    let (mut nodes, syntax_errors) = parse(text, 1_000_000);
    assert_eq!((nodes.len(), syntax_errors), (1, Vec::new()), "{text}");
    nodes.remove(0)
}

fn syntax_error(text: &str) -> String {
    parse(text, 1_000_000).1.first().map(|syntax_error| syntax_error.message.clone()).unwrap_or_default()
}

#[test]
fn places_are_bytes_of_the_text() {
    let text = "ä: \"ö\"\nb:\n  - c: 17 # x\n";
    let node = one(text);
    let Value::Mapping(entries) = &node.value else { panic!() };
    assert_eq!(&text[entries[0].0.span.start..entries[0].0.span.end], "ä");
    assert_eq!(&text[entries[0].1.span.start..entries[0].1.span.end], "\"ö\"");
    let Value::Sequence(items) = &entries[1].1.value else { panic!() };
    let c = items[0].get("c").unwrap();
    assert_eq!(&text[c.span.start..c.span.end], "17");
}

#[test]
fn aliases_and_merge_keys_stand_for_what_they_name() {
    let node = one("a: &a {x: 1, z: 2}\nb: *a\nc: {<<: *a, x: \"3\"}\nd: {<<: [{x: q}, *a]}\n");
    let number = |node: &Node<'_>, key: &str| match &node.get(key).unwrap().value {
        Value::Number(text) | Value::Text(text) => text.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(number(node.get("b").unwrap(), "x"), "1");
    assert_eq!(
        (number(node.get("c").unwrap(), "x"), number(node.get("c").unwrap(), "z")),
        ("3".into(), "2".into())
    );
    assert_eq!(
        (number(node.get("d").unwrap(), "x"), number(node.get("d").unwrap(), "z")),
        ("q".into(), "2".into())
    );
}

#[test]
fn a_bomb_of_aliases_is_refused() {
    let level = |level: usize| {
        let aliases = vec![format!("*a{}", level.saturating_sub(1)); 10].join(", ");
        format!("a{level}: &a{level} [{}]\n", if level == 0 { "x, x, x, x, x" } else { &aliases })
    };
    let text: Vec<String> = (0..12).map(level).collect();
    let text = text.concat();
    assert!(syntax_error(&text).contains("stand for more than"), "{}", syntax_error(&text));
    let long = format!("a: &a \"{}\"\nb: [{}]\n", "\\n".repeat(1_000_000), vec!["*a"; 1000].join(", "));
    assert!(syntax_error(&long).contains("stand for more than"), "{}", syntax_error(&long));
}

#[test]
fn what_has_no_meaning_in_kubernetes_is_refused() {
    for (text, part) in [
        ("a: &a [*a]", "complete before it"),
        ("a: *b", "invalid YAML"),
        ("? [a]\n: b", "not a list or a mapping"),
        ("yes: b", "must be text"),
        ("a: !Secret b", "tag"),
        ("a: {<<: 1}", "merges mappings"),
        ("a: [b", "invalid YAML"),
        ("a: b\n\tc: d", "invalid YAML"),
    ] {
        assert!(syntax_error(text).contains(part), "{text}: {}", syntax_error(text));
    }
    let deep = syntax_error(&"- ".repeat(5000));
    assert!(deep.contains("invalid YAML") || deep.contains("levels deep"), "{deep}");
}

/// Short form of the tree: `{key=value}`, `[item item]`.
fn shape(node: &Node<'_>) -> String {
    match &node.value {
        Value::Sequence(items) => format!("[{}]", items.iter().map(shape).collect::<Vec<_>>().join(" ")),
        Value::Mapping(entries) => {
            let entry = |(key, node): &(Key<'_>, Node<'_>)| format!("{}={}", key.name, shape(node));
            format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(" "))
        }
        Value::Text(text) | Value::Number(text) => text.escape_default().to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Null => "~".to_owned(),
    }
}

/// Expected results are those of libyaml 0.2.5 (`yaml.CBaseLoader` of `PyYAML` 6.0); `None` if it rejects the
/// text.
#[test]
fn a_text_is_read_as_libyaml_reads_it_or_refused() {
    for (text, expected) in [
        // A closing bracket may stand in the column of the key, and tabs are blanks within brackets.
        ("spec: {\n  a: b\n}\nc: d\n", Some("{spec={a=b} c=d}")),
        ("a: [\n  b,\n  c\n]\n", Some("{a=[b c]}")),
        ("- {\n  a: b\n}\n", Some("[{a=b}]")),
        ("a: {\n\tb: c,\n\td: [\n\t\te,\n\t],\n\t}\n", Some("{a={b=c d=[e]}}")),
        ("a: {\n\tb: c\n\t}\n", None),
        ("a:\tb\t# c\n", Some("{a=b}")),
        // Tabs are no indentation.
        ("\ta: b\n", None),
        ("a:\n\tb: c\n", None),
        ("a: b\n\tc: d\n", None),
        ("- a\n\t- b\n", None),
        ("- \ta\n", None),
        ("a: |\n\tb\n", None),
        // A block scalar at the end of the text gets no line break that is absent there.
        ("a: |\n  b", Some("{a=b}")),
        ("a: |\n  b\n", Some("{a=b\\n}")),
        ("a: >-\n  b\n  c", Some("{a=b c}")),
        ("a: |\n  b\n  ", None),
        // Accepted beyond YAML 1.2.
        ("a: {b: c}#d\n", Some("{a={b=c}}")),
        ("a:\n  - b: \"c\n   d\"\n", Some("{a=[{b=c d}]}")),
        ("a: [b\nc]\n", Some("{a=[b c]}")),
        // Rejected although YAML 1.2 accepts it.
        ("a: {b:}\n", None),
        ("a: {b: ::1}\n", None),
        ("{a b\n  c: d}\n", None),
        ("a: [b,, c]\n", None),
        ("...\n", None),
        // Tags followed by a comma: the scanner would panic.
        ("a: [!!str,b]\n", None),
        ("a: !x,b\n", None),
        ("a: 'no!, b' # c!,\n", Some("{a=no!, b}")),
        ("a: no!,b\nc: [!!str ,b]\n", Some("{a=no!,b c=[ b]}")),
    ] {
        let (nodes, syntax_errors) = parse(text, 1_000_000);
        let read =
            syntax_errors.is_empty().then(|| nodes.iter().map(shape).collect::<Vec<_>>().join(" --- "));
        assert_eq!(read.as_deref(), expected, "{text:?}: {syntax_errors:?}");
    }
}

#[test]
fn a_fault_of_indentation_is_told_where_the_tab_is() {
    let (_, syntax_errors) = parse("a:\n\tb: c\n", 1000);
    assert_eq!(
        (syntax_errors[0].span.start, syntax_errors[0].help.as_deref()),
        (3, Some("indent with spaces: a tab is none"))
    );
    let (_, syntax_errors) = parse("a: b\nc: \u{1b}[2J\n", 1000);
    assert_eq!(syntax_errors[0].span.start, 8, "{syntax_errors:?}");
}

#[test]
fn tags_of_yaml_itself_type_a_scalar() {
    let node = one("a: !!str 80\nb: !!int \"80\"\n");
    assert_eq!(node.get("a").unwrap().text(), Some("80"));
    assert!(matches!(node.get("b").unwrap().value, Value::Number(_)));
}

//! Parts of Helm charts and of kustomizations: no objects before a program has rendered them.

use std::path::Path;

use crate::policy::parse::tree::{Node, Span, Value};
use crate::policy::parse::{Diagnostic, Source};

/// Actions of a word alone.
const WORDS: [&str; 2] = ["else", "end"];

/// Help for parts of a chart.
const RENDER_CHART: &str = "render the chart (helm template DIRECTORY), and give the result in its place; --exclude leaves its directory out";

/// Message about a template, and help.
pub(super) const TEMPLATE: (&str, &str) =
    ("this is a template of a Helm chart, which has to be rendered first", RENDER_CHART);

/// Span of an action of a template, if the errors of a text come from such: its syntax is wrong and it has actions, or a
/// wrong value has one.
pub(super) fn template(source: &Source, errors: &[Diagnostic], has_syntax_errors: bool) -> Option<Span> {
    if has_syntax_errors {
        return first_action(source.text());
    }
    errors.iter().find_map(|error| {
        let Span { start, end } = error.location.underlined();
        let action = first_action(&source.text()[start..end])?;
        Some(Span::new(start + action.start, start + action.end))
    })
}

/// Span of the first action outside of comments: `{{ .Values.name }}`, `{{- if …`, `{{ include "name" . }}`.
fn first_action(text: &str) -> Option<Span> {
    let (mut seen, mut is_comment) = (0, text.trim_start().starts_with('#'));
    for (start, _) in text.match_indices("{{") {
        if let Some(line) = text[seen..start].rfind('\n') {
            is_comment = text[seen + line + 1..].trim_start().starts_with('#');
        }
        seen = start;
        let inside = text[start + 2..].trim_start_matches('-').trim_start();
        if !is_comment && is_action(inside) {
            let end = text.len() - inside.len() + inside.find("}}")? + 2;
            return Some(Span::new(start, end));
        }
    }
    None
}

/// Whether this text behind `{{` is an action: a value, a comment, or a word with arguments.
fn is_action(inside: &str) -> bool {
    let end = inside.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(inside.len());
    let (word, rest) = inside.split_at(end);
    let has_argument = || {
        let argument = rest.trim_start();
        rest.starts_with([' ', '\t', '\n'])
            && argument.starts_with(|c: char| c.is_ascii_alphanumeric() || ".$\"'`(".contains(c))
    };
    inside.starts_with(['.', '$'])
        || inside.starts_with("/*")
        || WORDS.contains(&word)
        || !word.is_empty() && has_argument()
}

/// Message about a document that is a part of a chart or a kustomization, and help. No document with a field of an object is:
/// a policy whose header is misspelt has to be refused.
pub(super) fn part_of(node: &Node<'_>, source: &str) -> Option<(&'static str, &'static str)> {
    let path = Path::new(source);
    let name = path.file_name()?.to_str()?;
    let is_yaml = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
    if let Value::Sequence(items) = &node.value {
        let message = "a JSON patch (RFC 6902) is no object: it is passed over";
        return is_json_patch(items).then_some((message, KUSTOMIZATION.1));
    }
    if ["kind", "metadata", "spec"].into_iter().any(|field| has(node, field)) {
        return None;
    }
    let version = node.get("apiVersion").and_then(|version| version.text());
    let has_version = has(node, "apiVersion");
    let (is_part, message) = match name {
        "Chart.yaml" => (
            matches!(version, Some("v1" | "v2")) && has(node, "name") && has(node, "version"),
            ("Chart.yaml describes a Helm chart and is no object: the file is passed over", RENDER_CHART),
        ),
        "values.schema.json" => (
            has(node, "$schema") && !has_version,
            ("the schema of a Helm chart's values is no object: the file is passed over", RENDER_CHART),
        ),
        "kustomization.yaml" | "kustomization.yml" => {
            let is_of_kustomize =
                version.is_some_and(|version| version.starts_with("kustomize.config.k8s.io/"));
            (is_of_kustomize || !has_version, KUSTOMIZATION)
        }
        _ => (
            is_yaml && name.starts_with("values") && !has_version && matches!(node.value, Value::Mapping(_)),
            ("values of a Helm chart are no object: the file is passed over", RENDER_CHART),
        ),
    };
    is_part.then_some(message)
}

/// Whether a mapping has a key, in capitals or small letters.
fn has(node: &Node<'_>, field: &str) -> bool {
    let Value::Mapping(entries) = &node.value else { return false };
    entries.iter().any(|(key, _)| key.name.eq_ignore_ascii_case(field))
}

/// Message about a kustomization, and help.
pub(super) const KUSTOMIZATION: (&str, &str) = (
    "a kustomization is not applied: its patches, names and generators have no effect here",
    "render it (kubectl kustomize DIRECTORY), and give the result in its place; --exclude leaves its directory out",
);

fn is_json_patch(items: &[Node<'_>]) -> bool {
    const OPERATIONS: [&str; 6] = ["add", "remove", "replace", "move", "copy", "test"];
    let is_operation = |item: &Node<'_>| {
        let text = |key| item.get(key).and_then(|value| value.text());
        text("op").is_some_and(|op| OPERATIONS.contains(&op))
            && text("path").is_some()
            && !["kind", "apiVersion", "metadata", "spec"].into_iter().any(|field| has(item, field))
    };
    !items.is_empty() && items.iter().all(is_operation)
}

#[cfg(test)]
mod tests {
    use crate::policy::parse::{Diagnostic, Source, parse_source};

    fn errors(name: &str, text: &str) -> Vec<Diagnostic> {
        parse_source(&Source::new(name, text)).unwrap_err()
    }

    fn warnings(name: &str, text: &str) -> Vec<String> {
        let parsed = parse_source(&Source::new(name, text)).unwrap();
        assert!(parsed.objects.is_empty());
        parsed.warnings.into_iter().map(|warning| warning.message).collect()
    }

    #[test]
    fn a_template_is_named_at_its_first_action_and_nothing_else_is_said() {
        let policy = |name: &str, labels: &str| {
            format!(
                "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}}}\nspec: {{podSelector: \
                 {{matchLabels: {{{labels}}}}}}}\n"
            )
        };
        for text in [
            policy("{{ .Release.Name }}-db", ""),
            policy("'{{ include \"db.name\" . }}'", ""),
            policy("a", "app: \"{{- $name -}}\""),
            format!("{{{{- if .Values.enabled }}}}\n{}{{{{- end }}}}\n", policy("a", "")),
            policy("{{ required \"a name\" .Values.name }}", ""),
            policy("{{lower .Values.name}}", ""),
        ] {
            let found = errors("templates/db.yaml", &text);
            let [one] = found.as_slice() else { panic!("{text}: {found:?}") };
            assert!(one.message.contains("template of a Helm chart"), "{text}: {one}");
            assert_eq!(one.location.offset(), text.find("{{").unwrap(), "{text}");
        }
        // Braces that are no action, in a text that is right and in one that is wrong.
        assert!(parse_source(&Source::new("a.yaml", policy("a", "") + "# {{ .Values.x }}\n")).is_ok());
        assert!(errors("a.yaml", &policy("a", "app: '{{x}}'"))[0].message.starts_with("Invalid value"));
    }

    #[test]
    fn actions_elsewhere_hide_no_error() {
        let wrong = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: a}\nspec: {podSelectr: {}}\n";
        let alert = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: '{{ $labels.instance }} is down'}\n---\n";
        for before in ["", "# uses {{ .Values.x }}\n", alert] {
            let found = errors("a.yaml", &format!("{before}{wrong}"));
            assert!(found.len() == 1 && found[0].message.contains("podSelectr"), "{before}: {found:?}");
        }
        let comment = errors("a.yaml", &format!("# uses {{{{ .Values.x }}}}\n{wrong}a: [\n"));
        assert!(comment.iter().any(|error| error.message.contains("invalid YAML")), "{comment:?}");
    }

    #[test]
    fn a_policy_is_never_passed_over_for_the_name_of_its_file() {
        let metadata = "metadata: {name: x}\nspec: {podSelector: {}}\n";
        let item = "apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: x}, spec: {podSelector: {}}";
        for (name, text) in [
            (
                "values-deny.yaml",
                format!("Kind: NetworkPolicy\nApiVersion: networking.k8s.io/v1\n{metadata}"),
            ),
            ("values.yaml", metadata.to_owned()),
            (
                "values.yaml",
                format!("apiVersion: v1\nkind: List\nitems:\n- {}", metadata.replace('\n', "\n  ")),
            ),
            ("Chart.yaml", format!("apiVersion: networking.k8s.io/v1\n{metadata}")),
            ("Chart.yaml", "apiVersion: v2\nname: x\nversion: 1\nspec: {}\n".to_owned()),
            ("kustomization.yaml", format!("apiVersion: networking.k8s.io/v1\n{metadata}")),
            ("kustomization.deny.yaml", "resources: [a.yaml]\n".to_owned()),
            ("values.schema.json", "{\"metadata\": {\"name\": \"x\"}, \"$schema\": \"x\"}".to_owned()),
            ("a.yaml", format!("- {{{item}, op: add, path: /b}}\n")),
            ("a.yaml", "- {op: deny, path: /b}\n".to_owned()),
        ] {
            assert!(!errors(name, &text).is_empty(), "{name}: {text}");
        }
    }

    #[test]
    fn parts_of_charts_and_kustomizations_are_passed_over_by_name() {
        let patch = "- {op: replace, path: /spec/podSelector, value: {}}\n";
        for (name, text, says) in [
            ("chart/values.yaml", "replicas: 1\n", "values of a Helm chart"),
            (
                "values.schema.json",
                "{\"$schema\": \"x\", \"properties\": {}}",
                "schema of a Helm chart's values",
            ),
            ("values-prod.yaml", "image: {tag: x}\n", "values of a Helm chart"),
            ("Chart.yaml", "apiVersion: v2\nname: x\nversion: 0.1.0\n", "describes a Helm chart"),
            ("kustomization.yaml", "resources: [policy.yaml]\n", "kustomization is not applied"),
            (
                "a.yaml",
                "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [policy.yaml]\n",
                "kustomization is not applied",
            ),
            ("patch.yaml", patch, "JSON patch"),
        ] {
            let found = warnings(name, text);
            assert!(found.len() == 1 && found[0].contains(says), "{name}: {found:?}");
        }
        for (name, text) in
            [("a.yaml", "replicas: 1\n"), ("values.yaml", "[a]\n"), ("values.yaml", "apiVersion: v1\n")]
        {
            assert!(!errors(name, text).is_empty(), "{name}: {text}");
        }
    }

    #[test]
    fn endpoints_are_passed_over_with_a_warning() {
        let found = warnings("a.yaml", "apiVersion: v1\nkind: Endpoints\nmetadata: {name: db}\n");
        assert!(found.len() == 1 && found[0].contains("EndpointSlices"), "{found:?}");
    }
}

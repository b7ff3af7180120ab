//! Parts of Helm charts and of kustomizations: no objects before a program has rendered them.

use std::path::Path;

use crate::policy::parse::tree::{Node, Span, Value};

/// Words that begin an action of a template, apart from values (`.Values.x`, `$name`).
const WORDS: [&str; 14] = [
    "if", "else", "end", "range", "with", "define", "template", "block", "include", "toYaml", "quote",
    "default", "tpl", "printf",
];

/// Message about a template, and help.
pub(super) const TEMPLATE: (&str, &str) = (
    "this is a template of a Helm chart, and no manifest before it is rendered",
    "give what the chart renders to: helm template DIRECTORY | palisade lint -",
);

/// Place of the first action of a template: `{{ .Values.name }}`, `{{- if … }}`.
pub(super) fn first_action(text: &str) -> Option<Span> {
    let mut braces = text.match_indices("{{");
    let (start, inside) = braces.find_map(|(start, _)| {
        let inside = text[start + 2..].trim_start_matches('-').trim_start();
        let word: &str = inside.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
        let is_action = inside.starts_with(['.', '$']) || inside.starts_with("/*") || WORDS.contains(&word);
        is_action.then_some((start, inside))
    })?;
    let end = text.len() - inside.len() + inside.find("}}")? + 2;
    Some(Span::new(start, end))
}

/// Message about a document without `kind` that belongs to a chart or a kustomization, and help.
pub(super) fn part_of(node: &Node<'_>, source: &str) -> Option<(&'static str, &'static str)> {
    let path = Path::new(source);
    let name = path.file_name()?.to_str()?;
    let is_yaml = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
    let help = "give what it renders to: helm template DIRECTORY | palisade lint -";
    match &node.value {
        Value::Mapping(_) if node.get("kind").is_some() => None,
        Value::Mapping(_) if is_yaml && name.starts_with("values") && node.get("apiVersion").is_none() => {
            Some(("values of a Helm chart are no object: the file is passed over", help))
        }
        Value::Mapping(_) if name == "Chart.yaml" => {
            Some(("the description of a Helm chart is no object: the file is passed over", help))
        }
        Value::Mapping(_) if is_yaml && name.starts_with("kustomization.") => Some(KUSTOMIZATION),
        Value::Sequence(items) if is_json_patch(items) => {
            Some(("a JSON patch (RFC 6902) is no object: it is passed over", KUSTOMIZATION.1))
        }
        _ => None,
    }
}

/// Message about a kustomization, and help.
pub(super) const KUSTOMIZATION: (&str, &str) = (
    "a kustomization is not applied: its patches, names and generators have no effect here",
    "give what it renders to: kubectl kustomize DIRECTORY | palisade lint -",
);

fn is_json_patch(items: &[Node<'_>]) -> bool {
    let has = |item: &Node<'_>, key| item.get(key).is_some_and(|value| value.text().is_some());
    !items.is_empty() && items.iter().all(|item| has(item, "op") && has(item, "path"))
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
    fn parts_of_charts_and_kustomizations_are_passed_over_by_name() {
        let patch = "- {op: replace, path: /spec/podSelector, value: {}}\n";
        for (name, text, says) in [
            ("chart/values.yaml", "replicas: 1\n", "values of a Helm chart"),
            ("values-prod.yaml", "image: {tag: x}\n", "values of a Helm chart"),
            ("Chart.yaml", "apiVersion: v2\nname: x\nversion: 0.1.0\n", "description of a Helm chart"),
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

//! Parsing of one object of the API with the parsers of manifests.

use super::kinds::Kind;
use crate::policy::objects::Object;
use crate::policy::parse::{Diagnostic, Severity, Source, parse_source};

/// Most errors of one object that its message names.
const ERRORS_MAX: usize = 4;

/// Name of an object within its kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    /// Namespace; empty for a cluster-wide object.
    pub(super) namespace: String,
    /// Name.
    pub(super) name: String,
}

/// Object, and the parts of it that are not enforced as written, if any.
pub(super) type Readable = (Object, Option<String>);

/// Reads one object. The error names fields and reasons.
pub(super) fn parse(kind: &Kind, text: &str) -> Result<Readable, String> {
    let header =
        format!("{{\"apiVersion\":\"{}\",\"kind\":\"{}\"", kind.api_version(kind.versions[0]), kind.name);
    let fields = text.strip_prefix('{').ok_or("it is no JSON object")?;
    let comma = if fields.starts_with('}') { "" } else { "," };
    let source = Source::new("object.json", format!("{header}{comma}{fields}"));
    let parsed = parse_source(&source).map_err(|errors| listed(&errors))?;
    let unenforced: Vec<Diagnostic> =
        parsed.warnings.into_iter().filter(|warning| warning.severity == Severity::Unenforced).collect();
    let unenforced = (!unenforced.is_empty()).then(|| listed(&unenforced));
    let object = parsed.objects.into_iter().next().map(|(object, _)| object);
    Ok((object.ok_or_else(|| "it is no object".to_owned())?, unenforced))
}

/// The first diagnostics with their fields, and the number of others.
fn listed(diagnostics: &[Diagnostic]) -> String {
    let shown = diagnostics.iter().take(ERRORS_MAX).map(|diagnostic| {
        let colon = if diagnostic.path.is_empty() { "" } else { ": " };
        format!("{}{colon}{}", diagnostic.path, diagnostic.message)
    });
    let more = diagnostics.len().saturating_sub(ERRORS_MAX);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    shown.collect::<Vec<_>>().join("; ") + &more
}

mod histories;
mod naive;
mod rules;

use crate::policy::objects::Object;
use crate::policy::parse::{Source, parse_source};

/// Objects of a text.
fn objects(text: &str) -> Vec<Object> {
    let parsed = parse_source(&Source::new("test.yaml", text)).unwrap_or_else(|errors| panic!("{errors:?}"));
    parsed.objects.into_iter().map(|(object, _)| object).collect()
}

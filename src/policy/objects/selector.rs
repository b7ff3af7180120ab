//! Label selectors (apimachinery `labels/selector.go`).

use super::cluster_objects::Labels;

/// All requirements must hold; none is every object.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelSelector {
    /// Sorted and free of duplicates; `matchLabels` entries stand here as [`Requirement::In`] with one value.
    pub requirements: Vec<Requirement>,
}

/// One requirement of a selector.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Requirement {
    /// The key is there, with one of the values.
    In {
        /// Label key.
        key: String,
        /// Sorted values, at least one.
        values: Vec<String>,
    },
    /// The key is absent, or has none of the values.
    NotIn {
        /// Label key.
        key: String,
        /// Sorted values, at least one.
        values: Vec<String>,
    },
    /// The key is there.
    Exists {
        /// Label key.
        key: String,
    },
    /// The key is absent.
    DoesNotExist {
        /// Label key.
        key: String,
    },
}

impl LabelSelector {
    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(labels))
    }

    /// Whether the selector selects every object.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }
}

impl Requirement {
    /// The label key that it is about.
    pub fn key(&self) -> &str {
        match self {
            Requirement::In { key, .. }
            | Requirement::NotIn { key, .. }
            | Requirement::Exists { key }
            | Requirement::DoesNotExist { key } => key,
        }
    }

    /// Whether labels meet the requirement.
    pub fn matches(&self, labels: &Labels) -> bool {
        match self {
            Requirement::In { key, values } => labels.get(key).is_some_and(|value| values.contains(value)),
            Requirement::NotIn { key, values } => labels.get(key).is_none_or(|value| !values.contains(value)),
            Requirement::Exists { key } => labels.contains_key(key),
            Requirement::DoesNotExist { key } => !labels.contains_key(key),
        }
    }
}

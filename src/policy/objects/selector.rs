//! Label selectors (apimachinery `labels/selector.go`).

use super::cluster_objects::Labels;

/// Label selector. All requirements must hold; a selector without requirements selects every object.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelSelector {
    /// Requirements, sorted and free of duplicates. An entry of `matchLabels` is a [`Requirement::In`] with
    /// one value.
    pub requirements: Vec<Requirement>,
}

/// One requirement of a selector.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Requirement {
    /// Key is present and has one of the values.
    In {
        /// Label key.
        key: String,
        /// Sorted values, at least one.
        values: Vec<String>,
    },
    /// Key is absent or has none of the values.
    NotIn {
        /// Label key.
        key: String,
        /// Sorted values, at least one.
        values: Vec<String>,
    },
    /// Key is present.
    Exists {
        /// Label key.
        key: String,
    },
    /// Key is absent.
    DoesNotExist {
        /// Label key.
        key: String,
    },
}

impl LabelSelector {
    /// Tests whether the selector selects an object with these labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(labels))
    }

    /// Tests whether the selector selects every object.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }
}

impl Requirement {
    /// Label key of the requirement.
    pub fn key(&self) -> &str {
        match self {
            Requirement::In { key, .. }
            | Requirement::NotIn { key, .. }
            | Requirement::Exists { key }
            | Requirement::DoesNotExist { key } => key,
        }
    }

    /// Tests whether labels meet the requirement.
    pub fn matches(&self, labels: &Labels) -> bool {
        match self {
            Requirement::In { key, values } => labels.get(key).is_some_and(|value| values.contains(value)),
            Requirement::NotIn { key, values } => labels.get(key).is_none_or(|value| !values.contains(value)),
            Requirement::Exists { key } => labels.contains_key(key),
            Requirement::DoesNotExist { key } => !labels.contains_key(key),
        }
    }
}

//! Sorted vectors as small sets.

/// Adds an item. Returns `true` if it was absent.
pub(crate) fn insert<T: Ord>(items: &mut Vec<T>, item: T) -> bool {
    match items.binary_search(&item) {
        Ok(_) => false,
        Err(at) => {
            items.insert(at, item);
            true
        }
    }
}

/// Removes an item. Returns `true` if it was present.
pub(crate) fn remove<T: Ord>(items: &mut Vec<T>, item: &T) -> bool {
    match items.binary_search(item) {
        Ok(at) => {
            items.remove(at);
            true
        }
        Err(_) => false,
    }
}

//! Sets as sorted vectors: small, in order, and cheap to read.

/// Adds an item; whether it was missing.
pub(crate) fn insert<T: Ord>(items: &mut Vec<T>, item: T) -> bool {
    match items.binary_search(&item) {
        Ok(_) => false,
        Err(at) => {
            items.insert(at, item);
            true
        }
    }
}

/// Takes an item out; whether it was there.
pub(crate) fn remove<T: Ord>(items: &mut Vec<T>, item: &T) -> bool {
    match items.binary_search(item) {
        Ok(at) => {
            items.remove(at);
            true
        }
        Err(_) => false,
    }
}

//! Lists, a page at a time.

use std::marker::PhantomData;

use crate::{Cluster, Error, Object, Page, Result, Selector};

/// The maximum number of pages in a list. An API server that invents page tokens would otherwise
/// keep a function busy until its timeout.
const MAX_PAGES: usize = 1000;

/// The pages of a list. A function holds one page at a time, because the objects of a tenant may
/// exceed its memory.
pub struct Pages<'a, C, K> {
    cluster: &'a C,
    namespace: Option<&'a str>,
    selector: Selector<'a>,
    /// The token of the next page; none before the first.
    from: Option<String>,
    /// How many pages may follow.
    left: usize,
    of: PhantomData<K>,
}

impl<'a, C: Cluster, K: Object> Pages<'a, C, K> {
    /// The selected objects of a namespace, or of all; see [`Cluster::page`].
    pub fn new(cluster: &'a C, namespace: Option<&'a str>, selector: Selector<'a>) -> Self {
        Self { cluster, namespace, selector, from: None, left: MAX_PAGES, of: PhantomData }
    }

    /// Returns whether pages may follow.
    #[must_use]
    pub fn has_next(&self) -> bool {
        self.left > 0
    }

    /// The objects of the next page; `None` after the last.
    ///
    /// # Errors
    /// Those of the call, and [`Error::Permanent`] for a list that does not end.
    pub async fn next(&mut self) -> Result<Option<Vec<K>>> {
        if self.left == 0 {
            return Ok(None);
        }
        let Page { objects, next } = self.cluster.page(self.namespace, self.selector, self.from.as_deref()).await?;
        self.left = if next.is_some() { self.left - 1 } else { 0 };
        if next.is_some() && (next == self.from || self.left == 0) {
            let call = format!("list {}", K::plural(&()));
            let message = format!("a page token repeats, or there are more than {MAX_PAGES} pages; check the API server");
            return Err(Error::Permanent { call, message });
        }
        self.from = next;
        Ok(Some(objects))
    }
}

//! A stored object of the cluster: its JSON, and what was already read from it.

use std::{
    any::Any,
    cell::RefCell,
    hash::{Hash, Hasher},
    ops::Deref,
    rc::Rc,
};

use serde::de::DeserializeOwned;
use serde_json::Value;

/// An object as the API server stores it. A copy is cheap. A test reads an object far more often
/// than it writes one, so the typed objects that were read from the JSON are kept beside it.
#[derive(Clone)]
pub struct Stored(Rc<Parts>);

struct Parts {
    json: Value,
    /// At most one of each type.
    typed: RefCell<Vec<Rc<dyn Any>>>,
}

impl Stored {
    /// The object as a type. The first read of each type parses the JSON.
    ///
    /// # Errors
    /// The JSON is none of that type.
    pub fn typed<T: DeserializeOwned + Clone + 'static>(&self) -> serde_json::Result<T> {
        let known = self.0.typed.borrow().iter().find_map(|typed| typed.downcast_ref::<T>().cloned());
        if let Some(known) = known {
            return Ok(known);
        }
        let read = T::deserialize(&self.0.json)?;
        self.0.typed.borrow_mut().push(Rc::new(read.clone()));
        Ok(read)
    }
}

impl From<Value> for Stored {
    fn from(json: Value) -> Self {
        Self(Rc::new(Parts { json, typed: RefCell::default() }))
    }
}

impl Deref for Stored {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0.json
    }
}

impl Hash for Stored {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.json.hash(hasher);
    }
}

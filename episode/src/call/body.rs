//! The bytes of a request or a reply.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use bytes::Bytes;

/// The bytes of a request or a reply: held, or kept elsewhere and put together each time they are
/// read. An agent sends its history with every call, so the bodies of a long episode are many times
/// what is new in them.
#[derive(Clone)]
pub struct Body(BodyPlace);

#[derive(Clone)]
enum BodyPlace {
    Held(Bytes),
    Kept(Arc<dyn KeptBody>),
}

/// A body that is put together when it is read.
pub trait KeptBody: Send + Sync {
    /// Its length, in bytes.
    fn length(&self) -> usize;

    /// Its bytes.
    fn read(&self) -> Bytes;

    /// The bytes in memory that it is put together from, which the bodies of an attempt share.
    fn shared_bytes(&self) -> usize;
}

impl Body {
    /// A body that is put together when it is read.
    pub fn kept(body: Arc<dyn KeptBody>) -> Self {
        Self(BodyPlace::Kept(body))
    }

    /// Its bytes. Those of a body that is kept are a copy of their own.
    pub fn read(&self) -> Bytes {
        match &self.0 {
            BodyPlace::Held(bytes) => bytes.clone(),
            BodyPlace::Kept(body) => body.read(),
        }
    }

    /// Its length, in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            BodyPlace::Held(bytes) => bytes.len(),
            BodyPlace::Kept(body) => body.length(),
        }
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that it occupies by itself.
    pub fn held_bytes(&self) -> usize {
        match &self.0 {
            BodyPlace::Held(bytes) => bytes.len(),
            BodyPlace::Kept(_) => 0,
        }
    }

    /// The bytes in memory that it shares with the other bodies of its attempt, as long as one of
    /// them is there.
    pub fn shared_bytes(&self) -> usize {
        match &self.0 {
            BodyPlace::Held(_) => 0,
            BodyPlace::Kept(body) => body.shared_bytes(),
        }
    }
}

impl Default for Body {
    fn default() -> Self {
        Bytes::new().into()
    }
}

impl Debug for Body {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        self.read().fmt(formatter)
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(bytes: T) -> Self {
        Self(BodyPlace::Held(bytes.into()))
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.read() == other.read()
    }
}

impl<T: AsRef<[u8]>> PartialEq<T> for Body {
    fn eq(&self, other: &T) -> bool {
        self.read() == other.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Twice(&'static str);

    impl KeptBody for Twice {
        fn length(&self) -> usize {
            2 * self.0.len()
        }

        fn read(&self) -> Bytes {
            self.0.repeat(2).into()
        }

        fn shared_bytes(&self) -> usize {
            self.0.len()
        }
    }

    #[test]
    fn a_body_that_is_kept_is_the_same_as_one_that_is_held() {
        let (kept, held) = (Body::kept(Arc::new(Twice("ab"))), Body::from("abab"));
        assert_eq!(kept, held);
        assert_eq!((kept.read(), kept.len()), (held.read(), 4));
        assert_eq!((kept.held_bytes(), held.held_bytes()), (0, 4));
        assert_eq!((kept.shared_bytes(), held.shared_bytes()), (2, 0));
        assert_eq!(format!("{kept:?}"), "b\"abab\"");
        assert_ne!(kept, Body::default());
        assert!(kept == b"abab" && Body::default().is_empty());
    }
}

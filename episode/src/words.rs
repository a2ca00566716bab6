//! Enums whose values are stored, exported and shown as words.

/// Defines an enum with a word for each value, which `as_str` returns and `from_word` reads. With
/// `unknown => VALUE`, `from_word` reads an unknown word as that value; else it returns `None`.
macro_rules! words {
    (
        $(#[$doc:meta])*
        pub enum $type:ident { $($(#[$value_doc:meta])* $value:ident = $word:literal,)+ }
        unknown => $unknown:ident
    ) => {
        words!(@enum $(#[$doc])* $type { $($(#[$value_doc])* $value = $word,)+ });

        impl $type {
            /// The value of a word; an unknown word is
            #[doc = concat!("[`Self::", stringify!($unknown), "`].")]
            pub fn from_word(word: &str) -> Self {
                match word {
                    $($word => Self::$value,)+
                    _ => Self::$unknown,
                }
            }
        }
    };
    (
        $(#[$doc:meta])*
        pub enum $type:ident { $($(#[$value_doc:meta])* $value:ident = $word:literal,)+ }
    ) => {
        words!(@enum $(#[$doc])* $type { $($(#[$value_doc])* $value = $word,)+ });

        impl $type {
            /// The value of a word.
            pub fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$value),)+
                    _ => None,
                }
            }
        }
    };
    (
        @enum $(#[$doc:meta])*
        $type:ident { $($(#[$value_doc:meta])* $value:ident = $word:literal,)+ }
    ) => {
        $(#[$doc])*
        pub enum $type { $($(#[$value_doc])* $value,)+ }

        impl $type {
            /// The word that is stored, exported and shown.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$value => $word,)+ }
            }
        }
    };
}

pub(crate) use words;

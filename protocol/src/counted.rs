//! Counters with a number and a name: BPF programs and their loaders both use the same list, so a
//! counter can have no other name, and no other place in the counter map, than the program meant.

macro_rules! counted {
    ($(#[$of_enum:meta])* $name:ident {
        $($(#[$doc:meta])* $variant:ident = $text:literal,)*
    }) => {
        $(#[$of_enum])*
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        #[repr(u32)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// All of them, in the order of their counters.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Number of them, which is the size of the counter map.
            pub const COUNT: usize = Self::ALL.len();

            /// Name of the counter.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}
pub(crate) use counted;

#[cfg(test)]
mod tests {
    use crate::bench::{Outcome, Seen};
    use crate::verdict::Verdict;

    macro_rules! places_and_names {
        ($list:ty) => {
            for (place, it) in <$list>::ALL.iter().enumerate() {
                assert_eq!(*it as usize, place);
                assert!(<$list>::ALL[..place].iter().all(|other| other.name() != it.name()));
            }
        };
    }

    #[test]
    fn numbers_are_places_and_names_differ() {
        places_and_names!(Verdict);
        places_and_names!(Outcome);
        places_and_names!(Seen);
    }
}

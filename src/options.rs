//! Options have one manner: a default, and for each field a method of its name that sets it.

/// For each field a method of its name that sets it and gives the options back.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($($field:ident: $type:ty),* $(,)?) => {
        $(
            #[doc = concat!("Sets the field `", stringify!($field), "`.")]
            #[must_use]
            pub fn $field(self, $field: $type) -> Self {
                Self { $field, ..self }
            }
        )*
    };
}

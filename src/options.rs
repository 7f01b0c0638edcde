//! All options have the same form: a default, and for each field a method of its name that sets it.

/// Defines a struct of options: each field has a default, and a method of its name that sets it and
/// returns the options. Or defines only these methods, for fields of a struct that has no default.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    (
        $(#[$of_struct:meta])*
        pub struct $name:ident $(<$life:lifetime>)? {
            $($(#[$of_field:meta])* pub $field:ident: $type:ty = $default:expr,)*
        }
    ) => {
        $(#[$of_struct])*
        #[non_exhaustive]
        pub struct $name $(<$life>)? {
            $(pub(crate) $field: $type,)*
        }

        impl $(<$life>)? Default for $name $(<$life>)? {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $(<$life>)? $name $(<$life>)? {
            $crate::setters! { $($(#[$of_field])* $field: $type,)* }
        }
    };
    ($($(#[$of_field:meta])* $field:ident: $type:ty),* $(,)?) => {
        $(
            $(#[$of_field])*
            #[must_use]
            pub fn $field(self, $field: $type) -> Self {
                Self { $field, ..self }
            }
        )*
    };
}

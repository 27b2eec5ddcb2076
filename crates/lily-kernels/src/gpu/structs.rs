//! Argument structs in Rust and in Metal, from one declaration.

use std::fmt::Write as _;

/// A type that argument structs are made of.
pub trait MslStruct {
    /// Name in Metal: of a scalar, or of a struct that [`text`](MslStruct::text) declares.
    const NAME: &'static str;

    /// Fields in order; empty for a scalar.
    fn fields() -> Vec<Field>;

    /// Declarations of the structs inside, then of the struct itself.
    fn text() -> String {
        let mut text = String::new();
        let mut done = Vec::new();
        for field in Self::fields() {
            if !field.text.is_empty() && !done.contains(&field.ty) {
                done.push(field.ty);
                text += &field.text;
            }
        }
        if Self::fields().is_empty() {
            return text;
        }
        let _ = write!(text, "struct {} {{", Self::NAME);
        for field in Self::fields() {
            let _ = write!(text, " {} {};", field.ty, field.name);
        }
        text + " };\n"
    }
}

/// A field of an argument struct.
#[derive(Clone, Debug)]
pub struct Field {
    /// Name, the same in Rust and in Metal.
    pub name: &'static str,
    /// Type in Metal.
    pub ty: &'static str,
    /// Declarations that the type needs.
    pub text: String,
    /// Byte offset in the struct.
    pub offset: usize,
}

macro_rules! scalar {
    ($rust:ty, $metal:literal) => {
        impl MslStruct for $rust {
            const NAME: &'static str = $metal;

            fn fields() -> Vec<Field> {
                Vec::new()
            }
        }
    };
}

scalar!(u32, "uint");
scalar!(i32, "int");
scalar!(f32, "float");

/// Declares a `repr(C)` struct of 4-byte scalars, or of such structs, that kernels take as arguments, and
/// its Metal text with it.
macro_rules! msl_struct {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
        pub struct $name { $($(#[$field_meta])* pub $field: $ty,)* }

        impl $crate::gpu::MslStruct for $name {
            const NAME: &'static str = stringify!($name);

            fn fields() -> Vec<$crate::gpu::Field> {
                vec![$($crate::gpu::Field {
                    name: stringify!($field),
                    ty: <$ty as $crate::gpu::MslStruct>::NAME,
                    text: <$ty as $crate::gpu::MslStruct>::text(),
                    offset: std::mem::offset_of!($name, $field),
                },)*]
            }
        }
    };
}

pub(crate) use msl_struct;

#[cfg(test)]
mod tests {
    use super::*;

    msl_struct! {
        /// Inner.
        pub struct Pair {
            /// First.
            pub first: u32,
            /// Second.
            pub second: f32,
        }
    }

    msl_struct! {
        /// Outer.
        pub struct Args {
            /// A pair.
            pub one: Pair,
            /// Another.
            pub two: Pair,
            /// A number.
            pub count: i32,
        }
    }

    #[test]
    fn nested_structs_are_declared_once_and_before_their_users() {
        let text = "struct Pair { uint first; float second; };\n\
                    struct Args { Pair one; Pair two; int count; };\n";
        assert_eq!(Args::text(), text);
        let offsets: Vec<usize> = Args::fields().iter().map(|f| f.offset).collect();
        assert_eq!(offsets, [0, 8, 16]);
    }
}

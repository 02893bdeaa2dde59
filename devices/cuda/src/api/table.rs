//! Tables of functions that a library is asked for by their names when the program runs.
//!
//! This module must not know any library.

/// Makes of a list of functions the structure `Functions`, which keeps the library loaded, and `Functions::find`, which is
/// `None` where the library lacks one of them. Whoever writes such a list vouches for it: the library's header declares each
/// function as the list does.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $returned:ty;)*) => {
        /// The library's functions, by their names.
        #[allow(non_snake_case)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> $returned,)*
            _library: libloading::Library,
        }

        impl Functions {
            fn find(library: libloading::Library) -> Option<Self> {
                Some(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: the library's header declares the function like this; it stays loaded as long as the
                        // pointer is there.
                        *unsafe { library.get(name) }.ok()?
                    },)*
                    _library: library,
                })
            }
        }
    };
}
pub(super) use functions;

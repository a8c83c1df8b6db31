//! Parameters that are one of a few words.

use super::OpParam;

macro_rules! word_param {
    ($(#[doc = $doc:literal])+ $Name:ident as $form:literal {
        $(#[doc = $first_doc:literal])+ $First:ident = $first:literal,
        $($(#[doc = $variant_doc:literal])+ $Variant:ident = $word:literal,)*
    }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $Name {
            $(#[doc = $first_doc])+
            #[default]
            $First,
            $($(#[doc = $variant_doc])+ $Variant,)*
        }

        impl $Name {
            /// Every one.
            pub const ALL: &[Self] = &[Self::$First, $(Self::$Variant),*];
        }

        impl OpParam for $Name {
            type Arg = Self;
            const FORM: &str = $form;

            fn from_arg(arg: Self) -> Self {
                arg
            }

            fn text(&self) -> Option<String> {
                Some(match self {
                    Self::$First => $first.into(),
                    $(Self::$Variant => $word.into(),)*
                })
            }

            fn parse(text: &str) -> Option<Self> {
                match text {
                    $first => Some(Self::$First),
                    $($word => Some(Self::$Variant),)*
                    _ => None,
                }
            }

            fn key(&self, key: &mut Vec<u64>) {
                key.push(*self as u64);
            }
        }
    };
}

word_param! {
    /// Which elements of a head rope rotates together.
    RopeMode as "`normal`, `neox`, `mrope`, `vision` or `imrope`" {
        /// Neighbours: elements 2i and 2i+1.
        Normal = "normal",
        /// Halves: elements i and i + n_dims/2.
        Neox = "neox",
        /// Halves, and four positions a token (time, height, width, extra): `sections` says how many pairs in a row turn by
        /// each.
        Mrope = "mrope",
        /// As [`Self::Mrope`] over the whole row: `n_dims` is half of it, and frequencies begin anew in every section.
        Vision = "vision",
        /// As [`Self::Mrope`], with time, height and width taking turns from pair to pair.
        Imrope = "imrope",
    }
}

impl RopeMode {
    /// Whether tokens have four positions, of which pairs choose by sections.
    #[must_use]
    pub fn has_sections(self) -> bool {
        match self {
            Self::Normal | Self::Neox => false,
            Self::Mrope | Self::Vision | Self::Imrope => true,
        }
    }
}

word_param! {
    /// In which order elements are sorted.
    SortOrder as "`asc` or `desc`" {
        /// The smallest first.
        Ascending = "asc",
        /// The largest first.
        Descending = "desc",
    }
}

word_param! {
    /// What a pool takes of a window.
    PoolOp as "`max` or `avg`" {
        /// The largest element.
        Max = "max",
        /// The mean.
        Avg = "avg",
    }
}

word_param! {
    /// How new elements come from old ones where a tensor is stretched.
    UpscaleMode as "`nearest` or `bilinear`" {
        /// The element whose cell the new one falls in.
        Nearest = "nearest",
        /// The weighted mean of the two by two elements around.
        Bilinear = "bilinear",
    }
}

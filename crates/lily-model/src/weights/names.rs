//! Tensor and module names under the prefixes that converters use.

/// Where a stored name belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The text model, with the prefix brought to `model.…` or `lm_head…`.
    Text(String),
    /// The image encoder, left aside.
    Vision,
    /// The multi-token prediction head, left aside.
    Mtp,
}

/// Prefixes of the image encoder.
const VISION: [&str; 5] =
    ["vision_tower.", "visual.", "model.visual.", "model.vision_tower.", "vision_model."];
/// Prefixes of the multi-token prediction head.
const MTP: [&str; 4] = ["mtp.", "language_model.mtp.", "model.mtp.", "model.language_model.mtp."];

/// Sorts a tensor or module name. Names that are not known at all count as text.
pub(crate) fn place(name: &str) -> Place {
    if VISION.iter().any(|prefix| name.starts_with(prefix)) {
        return Place::Vision;
    }
    if MTP.iter().any(|prefix| name.starts_with(prefix)) {
        return Place::Mtp;
    }
    // MLX nests the text model as `language_model`, the original as `model.language_model`.
    if let Some(rest) = name.strip_prefix("model.language_model.") {
        return Place::Text(format!("model.{rest}"));
    }
    Place::Text(name.strip_prefix("language_model.").unwrap_or(name).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_prefix_leads_to_one_spelling() {
        for name in [
            "language_model.model.norm.weight",
            "model.norm.weight",
            "model.language_model.norm.weight",
        ] {
            assert_eq!(place(name), Place::Text("model.norm.weight".into()));
        }
        assert_eq!(place("language_model.lm_head.scales"), Place::Text("lm_head.scales".into()));
        assert_eq!(place("language_model.mtp.fc.weight"), Place::Mtp);
        assert_eq!(place("model.visual.blocks.0.norm1.weight"), Place::Vision);
    }
}

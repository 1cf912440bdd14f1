//! The spellings of Voxtral's tensors.

use std::borrow::Cow;

/// Canonical name of a Hugging Face tensor: transformers 5 writes `model.audio_tower.…`, `model.language_model.…` and
/// `lm_head.weight` where the 2507 release has `audio_tower.…`, `language_model.model.…` and
/// `language_model.lm_head.weight`.
pub(super) fn hugging_face(name: &str) -> Cow<'_, str> {
    if name == "lm_head.weight" {
        return "language_model.lm_head.weight".into();
    }
    match name.strip_prefix("model.") {
        Some(rest) => match rest.strip_prefix("language_model.") {
            Some(decoder) => format!("language_model.model.{decoder}").into(),
            None => rest.into(),
        },
        None => name.into(),
    }
}

/// Canonical name of a tensor of `consolidated.safetensors`; unknown names are kept, and then reported as unexpected.
pub(super) fn mistral(name: &str) -> Cow<'_, str> {
    let numbered = |rest: &str| rest.split_once('.').map(|(n, part)| (n.to_owned(), part.to_owned()));
    if let Some(encoder) = name.strip_prefix("mm_whisper_embeddings.whisper_encoder.") {
        if let Some((n, part)) = encoder.strip_prefix("conv_layers.").and_then(numbered) {
            let n = match n.as_str() {
                "0" => "1",
                "1" => "2",
                _ => return name.into(),
            };
            return format!("audio_tower.conv{n}.{part}").into();
        }
        if let Some(part) = encoder.strip_prefix("transformer.norm.") {
            return format!("audio_tower.layer_norm.{part}").into();
        }
        if let Some((n, part)) = encoder.strip_prefix("transformer.layers.").and_then(numbered) {
            let part = part
                .replace("attention.wq.", "self_attn.q_proj.")
                .replace("attention.wk.", "self_attn.k_proj.")
                .replace("attention.wv.", "self_attn.v_proj.")
                .replace("attention.wo.", "self_attn.out_proj.")
                .replace("attention_norm.", "self_attn_layer_norm.")
                .replace("ffn_norm.", "final_layer_norm.")
                .replace("feed_forward.w1.", "fc1.")
                .replace("feed_forward.w2.", "fc2.");
            return format!("audio_tower.layers.{n}.{part}").into();
        }
        return name.into();
    }
    match name {
        "mm_whisper_embeddings.tok_embeddings.weight" => {
            return "language_model.model.embed_tokens.weight".into();
        }
        "mm_whisper_embeddings.audio_language_projection.0.weight" => {
            return "multi_modal_projector.linear_1.weight".into();
        }
        "mm_whisper_embeddings.audio_language_projection.2.weight" => {
            return "multi_modal_projector.linear_2.weight".into();
        }
        "output.weight" => return "language_model.lm_head.weight".into(),
        "norm.weight" => return "language_model.model.norm.weight".into(),
        _ => {}
    }
    if let Some((n, part)) = name.strip_prefix("layers.").and_then(numbered) {
        let part = part
            .replace("attention_norm.", "input_layernorm.")
            .replace("ffn_norm.", "post_attention_layernorm.")
            .replace("attention.wq.", "self_attn.q_proj.")
            .replace("attention.wk.", "self_attn.k_proj.")
            .replace("attention.wv.", "self_attn.v_proj.")
            .replace("attention.wo.", "self_attn.o_proj.")
            .replace("feed_forward.w1.", "mlp.gate_proj.")
            .replace("feed_forward.w2.", "mlp.down_proj.")
            .replace("feed_forward.w3.", "mlp.up_proj.");
        return format!("language_model.model.layers.{n}.{part}").into();
    }
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_generation_meet() {
        for (from, to) in [
            ("model.audio_tower.conv1.bias", "audio_tower.conv1.bias"),
            (
                "model.language_model.layers.3.mlp.up_proj.weight",
                "language_model.model.layers.3.mlp.up_proj.weight",
            ),
            ("lm_head.weight", "language_model.lm_head.weight"),
            ("language_model.model.norm.weight", "language_model.model.norm.weight"),
        ] {
            assert_eq!(hugging_face(from), to);
        }
        for (from, to) in [
            ("mm_whisper_embeddings.whisper_encoder.conv_layers.1.bias", "audio_tower.conv2.bias"),
            (
                "mm_whisper_embeddings.whisper_encoder.transformer.layers.31.attention_norm.bias",
                "audio_tower.layers.31.self_attn_layer_norm.bias",
            ),
            ("layers.2.feed_forward.w2.weight", "language_model.model.layers.2.mlp.down_proj.weight"),
            ("layers.2.ffn_norm.weight", "language_model.model.layers.2.post_attention_layernorm.weight"),
            ("something.else", "something.else"),
        ] {
            assert_eq!(mistral(from), to);
        }
    }
}

//! `/v1/embeddings` of OpenAI's API.

use crate::job::{Input, Named, Rest, Stamp, check_rest};
use crate::openai::{HARMLESS, Prompt};
use crate::refusal::Refusal;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// Maximum number of inputs of a request, as in OpenAI's API.
const MAX_INPUTS: usize = 2048;

/// Texts or token ids to turn into vectors of length 1.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct EmbeddingRequest {
    model: Option<String>,
    input: Prompt,
    encoding_format: Option<Encoding>,
    /// Number of values of a vector, which must be the model's.
    dimensions: Option<u32>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Rest,
}

/// Encoding of vectors in the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Encoding {
    /// A list of numbers.
    #[default]
    Float,
    /// Base64 of the little-endian float32 values.
    Base64,
}

impl Named for EmbeddingRequest {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

impl EmbeddingRequest {
    /// Returns the inputs, and the encoding of the vectors. The model's vectors have `width` values.
    ///
    /// # Errors
    /// Refuses fields that the server cannot obey.
    pub(crate) fn inputs(self, width: u32) -> Result<(Vec<Input>, Encoding), Refusal> {
        check_rest(&self.rest, HARMLESS)?;
        if self.dimensions.is_some_and(|dimensions| dimensions != width) {
            return Err(Refusal::of("dimensions", format!("the model's vectors have {width} dimensions")));
        }
        let inputs = self.input.inputs();
        match inputs.len() {
            0 => Err(Refusal::of("input", "the list of inputs is empty")),
            1..=MAX_INPUTS => Ok((inputs, self.encoding_format.unwrap_or_default())),
            count => Err(Refusal::of("input", format!("{count} inputs are more than {MAX_INPUTS}"))),
        }
    }
}

/// Returns the answer with the vectors of all inputs, which have `tokens` tokens together.
pub(crate) fn answer(stamp: &Stamp, vectors: &[Vec<f32>], encoding: Encoding, tokens: u64) -> Value {
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        let embedding = match encoding {
            Encoding::Float => json!(vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                Value::String(base64(&bytes))
            }
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    });
    json!({
        "object": "list",
        "data": data.collect::<Vec<_>>(),
        "model": stamp.model,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })
}

/// Encodes bytes in base64 with padding (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = (word >> (18 - 6 * digit)) as usize & 63;
            out.push(if digit <= chunk.len() { char::from(DIGITS[value]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(request: &str) -> Result<(Vec<Input>, Encoding), Refusal> {
        serde_json::from_str::<EmbeddingRequest>(request)?.inputs(64)
    }

    #[test]
    fn base64_has_the_test_vectors_of_rfc_4648() {
        let texts = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(texts, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }

    #[test]
    fn inputs_are_texts_or_token_ids() {
        let count = |request| inputs(request).unwrap().0.len();
        assert_eq!(count(r#"{"input": "a", "dimensions": 64, "user": "b"}"#), 1);
        assert_eq!(count(r#"{"input": ["a", "b"], "encoding_format": null}"#), 2);
        assert!(
            matches!(&inputs(r#"{"input": [1, 2]}"#).unwrap().0[..], [Input::Tokens(ids)] if *ids == [1, 2])
        );
        assert_eq!(count(r#"{"input": [[1, 2], [3]]}"#), 2);
        let base64 = inputs(r#"{"input": "a", "encoding_format": "base64"}"#).unwrap().1;
        assert_eq!(base64, Encoding::Base64);
    }

    #[test]
    fn other_requests_are_refused() {
        let param = |request: &str| inputs(request).unwrap_err().param;
        assert_eq!(param(r#"{"input": "a", "dimensions": 32}"#).as_deref(), Some("dimensions"));
        assert_eq!(param(r#"{"input": []}"#).as_deref(), Some("input"));
        assert_eq!(param(r#"{"input": "a", "truncate": true}"#).as_deref(), Some("truncate"));
        assert_eq!(param(&json!({ "input": vec!["a"; 2049] }).to_string()).as_deref(), Some("input"));
        assert!(inputs(r#"{"input": 5}"#).is_err());
        assert!(inputs(r#"{"input": "a", "encoding_format": "int8"}"#).is_err());
    }
}

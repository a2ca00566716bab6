//! Refusals of weights, as errors of HTTP.

use crate::serve::http::ApiError;
use crate::update::Refused;

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> ApiError {
        match refused {
            Refused::Weights(reason) => ApiError::bad_request(reason),
            Refused::Label(reason) | Refused::Interrupted(reason) => ApiError::conflict(reason),
            Refused::Device(reason) => ApiError::failed(reason),
            Refused::Trainer(reason) => ApiError::gateway_timeout(reason),
            Refused::Stopping => ApiError::unavailable(Refused::Stopping),
        }
    }
}

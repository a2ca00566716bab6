//! Refusals of weights, as errors of HTTP.

use crate::serve::calls::ApiError;
use crate::update::UpdateError;

impl From<UpdateError> for ApiError {
    fn from(refused: UpdateError) -> ApiError {
        match refused {
            UpdateError::Weights(reason) => ApiError::bad_request(reason),
            UpdateError::Label(reason) | UpdateError::Interrupted(reason) => {
                ApiError::conflict(reason)
            }
            UpdateError::Device(reason) => ApiError::failed(reason),
            UpdateError::Trainer(reason) => ApiError::gateway_timeout(reason),
            UpdateError::Stopping => ApiError::unavailable(UpdateError::Stopping),
        }
    }
}

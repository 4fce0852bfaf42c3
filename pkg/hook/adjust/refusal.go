// SPDX-License-Identifier: Apache-2.0

package adjust

import (
	"fmt"

	"github.com/nri-vgpu/nri-vgpu/internal/container/runtimes"
)

// Reason classifies a refusal, as a metric's label.
type Reason string

// These constants are the reasons of refusals.
const (
	// ReasonPodUnknown means that the agent could not read the container's request.
	ReasonPodUnknown Reason = "pod-unknown"
	// ReasonRequest means that the container's request is invalid.
	ReasonRequest Reason = "request"
	// ReasonPlacement means that the container fits no GPU.
	ReasonPlacement Reason = "placement"
	// ReasonMount means that the container's mounts would hide nri-vgpu's mounts.
	ReasonMount Reason = "mount"
	// ReasonBypass means that the container obtains GPUs without resource limits.
	ReasonBypass Reason = "bypass"
	// ReasonInjection means that the agent cannot inject the GPU as configured.
	ReasonInjection Reason = "injection"
	// ReasonState means that the agent cannot write the container's files.
	ReasonState Reason = "state"
	// ReasonMPS means that the Multi-Process Service does not run on the container's GPU.
	ReasonMPS Reason = "mps"
	// ReasonUnadjusted means that the runtime created the container without the plugin's
	// adjustment.
	ReasonUnadjusted Reason = "unadjusted"
	// ReasonConflict means that another NRI plugin changed the plugin's adjustment.
	ReasonConflict Reason = "conflict"
)

// Reasons lists every reason.
var Reasons = []Reason{
	ReasonPodUnknown, ReasonRequest, ReasonPlacement, ReasonMount, ReasonBypass, ReasonInjection,
	ReasonState, ReasonMPS, ReasonUnadjusted, ReasonConflict,
}

// RefusalError is the error that prevents a container's creation or start. kubelet shows the error,
// one line with the cause and the remedy, in the pod's events.
type RefusalError struct {
	Reason    Reason
	Container string
	Err       error
}

func (r *RefusalError) Error() string {
	return fmt.Sprintf("nri-vgpu refuses container %q: %v", r.Container, r.Err)
}

func (r *RefusalError) Unwrap() error { return r.Err }

// Refuse returns the error that refuses the container.
func (c Container) Refuse(reason Reason, format string, args ...any) error {
	return &RefusalError{Reason: reason, Container: c.Name, Err: runtimes.Brief(fmt.Errorf(format, args...))}
}

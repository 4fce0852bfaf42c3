package hook

import (
	"fmt"

	"github.com/nri-vgpu/nri-vgpu/pkg/runtimes"
)

// Reason is why a container was refused, as a metric's label.
type Reason string

// The reasons.
const (
	// ReasonPodUnknown: what the container asks for could not be found out.
	ReasonPodUnknown Reason = "pod-unknown"
	// ReasonRequest: what it asks for means nothing.
	ReasonRequest Reason = "request"
	// ReasonPlacement: it fits no GPU.
	ReasonPlacement Reason = "placement"
	// ReasonMount: its own mounts would hide ours.
	ReasonMount Reason = "mount"
	// ReasonBypass: it asks for GPUs around us.
	ReasonBypass Reason = "bypass"
	// ReasonInjection: the GPU cannot be injected as configured.
	ReasonInjection Reason = "injection"
	// ReasonState: its files cannot be written.
	ReasonState Reason = "state"
	// ReasonMPS: the Multi-Process Service that its GPU is shared through does
	// not run.
	ReasonMPS Reason = "mps"
	// ReasonUnadjusted: it was created without our adjustment.
	ReasonUnadjusted Reason = "unadjusted"
	// ReasonConflict: another plugin changed what we did.
	ReasonConflict Reason = "conflict"
)

var reasons = []Reason{
	ReasonPodUnknown, ReasonRequest, ReasonPlacement, ReasonMount, ReasonBypass, ReasonInjection,
	ReasonState, ReasonMPS, ReasonUnadjusted, ReasonConflict,
}

// RefusalError is the error that keeps a container from being created or started.
// kubelet shows it in the pod's events: one line, with what to do.
type RefusalError struct {
	Reason    Reason
	Container string
	Err       error
}

func (r *RefusalError) Error() string {
	return fmt.Sprintf("nri-vgpu refuses container %q: %v", r.Container, r.Err)
}

func (r *RefusalError) Unwrap() error { return r.Err }

func (c Container) refuse(reason Reason, format string, args ...any) error {
	return &RefusalError{Reason: reason, Container: c.Name, Err: runtimes.Brief(fmt.Errorf(format, args...))}
}

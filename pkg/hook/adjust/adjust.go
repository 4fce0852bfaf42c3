// SPDX-License-Identifier: Apache-2.0

package adjust

import (
	"encoding/json"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// Rules holds the node's settings for the adjustment of containers.
type Rules struct {
	Injection config.Injection
	// LibraryDir is the host's directory with this version's libraries.
	LibraryDir string
	// Interposer returns the host's directory with the interposer libraries built for the
	// node's driver. A nil Interposer stands for LibraryDir.
	Interposer func() string
	// AgentDir is the host's directory with the agent's socket.
	AgentDir string
	// MPSDir is the host's directory with the control pipes of the Multi-Process Service. SHMDir is
	// the host's directory with the memory that clients of the service share with its server.
	MPSDir, SHMDir string
	// HasCDIDevice reports whether a CDI spec on the node defines a device.
	HasCDIDevice func(name string) bool
}

// Withhold hides all GPUs from a container that requests no GPU, whatever the image and the
// environment request.
func (r Rules) Withhold(c Container, rt Runtime) (Adjustment, error) {
	var a Adjustment
	if err := checkBypass(c, r.Injection.CDIKind); err != nil {
		return a, err
	}
	return a, a.setVisible(c, rt, NoDevices)
}

// Check refuses a container whose limits nri-vgpu could not enforce. Call Check before choosing a
// GPU, so that a refused container occupies no capacity.
func (r Rules) Check(c Container) error {
	if err := checkBypass(c, r.Injection.CDIKind); err != nil {
		return err
	}
	return checkMounts(c)
}

// Grant adjusts a container that passed Check and has an assignment.
func (r Rules) Grant(c Container, rt Runtime, given Assignment) (Adjustment, error) {
	var a Adjustment
	if err := r.inject(&a, c, rt, given.GPUs); err != nil {
		return a, err
	}
	if r.Interposes(given) {
		if err := CheckAbove(c); err != nil {
			return a, err
		}
		if err := a.setCapabilities(c, rt, r.Injection.DriverCapabilities); err != nil {
			return a, err
		}
		if err := a.setPreload(c, rt); err != nil {
			return a, err
		}
		a.mountOurs(r.LibraryDir, r.interposer(), given.Dir)
		a.joinMPS(c, r, given)
	} else {
		a.mountAssignment(given.Dir)
	}
	a.mountAgent(r.AgentDir)
	a.mountTools(c, r.LibraryDir, given.Dialect)
	return a, a.annotate(c, given)
}

// Interposes reports whether a container needs the interposer. A container that owns all of
// each of its GPUs has no limit to enforce, unless it may be resized again.
func (r Rules) Interposes(given Assignment) bool {
	return r.Injection.InterposeWholeGPUs || !given.whole() || given.ByMPS() || given.Resized
}

// interposer returns the host's directory of the interposer libraries that containers
// mount.
func (r Rules) interposer() string {
	if r.Interposer == nil {
		return r.LibraryDir
	}
	return r.Interposer()
}

func (a *Adjustment) annotate(c Container, given Assignment) error {
	data, err := json.Marshal(given.Allocation)
	if err != nil {
		return c.Refuse(ReasonState, "the agent failed to encode its assignment: %w", err)
	}
	a.Annotations = map[string]string{AssignmentAnnotation: string(data)}
	return nil
}

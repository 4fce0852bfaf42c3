// SPDX-License-Identifier: Apache-2.0

package adjust

import (
	"slices"
	"strconv"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/machine"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// inject adds the GPUs to the container, and hides all other GPUs from the
// NVIDIA runtime.
func (r Rules) inject(a *Adjustment, c Container, rt Runtime, gpus []gpu.GPU) error {
	method, err := r.method(c, rt, gpus)
	if err != nil {
		return err
	}
	switch method {
	case config.InjectCDI:
		for _, g := range gpus {
			a.CDIDevices = append(a.CDIDevices, r.cdiName(g))
		}
		// The GPU's CDI device may also set the variable: EnvDevice must come after that device.
		a.CDIDevices = append(a.CDIDevices, EnvDevice(NoDevices))
		return nil
	case config.InjectDirect:
		r.injectDirect(a, gpus)
		return a.setVisible(c, rt, NoDevices)
	default:
		return a.setVisible(c, rt, visibleUUIDs(gpus))
	}
}

// method returns the injection method for the GPUs, and resolves "auto".
func (r Rules) method(c Container, rt Runtime, gpus []gpu.GPU) (string, error) {
	method := r.Injection.Method
	if method == config.InjectDirect && slices.ContainsFunc(gpus, func(g gpu.GPU) bool { return gpu.IsMIG(g.UUID) }) {
		return "", c.Refuse(ReasonInjection, "injection.method is direct, which does not know the device nodes of MIG devices: set it to auto, cdi or env")
	}
	if method != config.InjectAuto && method != config.InjectCDI {
		return method, nil
	}
	missing := slices.IndexFunc(gpus, func(g gpu.GPU) bool { return !r.HasCDIDevice(r.cdiName(g)) })
	switch {
	case rt.CDI && missing < 0:
		return config.InjectCDI, nil
	case method == config.InjectAuto:
		return config.InjectEnv, nil
	case !rt.CDI:
		return "", c.Refuse(ReasonInjection, "injection.method is cdi, but %s %s accepts no CDI devices from plugins: set it to auto or env, or update to containerd 2.1 or CRI-O 1.34", rt.Name, rt.Version)
	default:
		return "", c.Refuse(ReasonInjection, "no CDI spec in %s names %s: make one with nvidia-ctk cdi generate --device-name-strategy=uuid", strings.Join(r.Injection.CDISpecDirs, ", "), r.cdiName(gpus[missing]))
	}
}

func (r Rules) cdiName(g gpu.GPU) string { return r.Injection.CDIKind + "=" + g.UUID }

func visibleUUIDs(gpus []gpu.GPU) string {
	uuids := make([]string, len(gpus))
	for i, g := range gpus {
		uuids[i] = g.UUID
	}
	return strings.Join(uuids, ",")
}

// injectDirect adds the configured device nodes and mounts. injectDirect adds an entry that does
// not depend on the GPU once.
func (r Rules) injectDirect(a *Adjustment, gpus []gpu.GPU) {
	for _, g := range gpus {
		expand := strings.NewReplacer(
			"{minor}", strconv.Itoa(g.Minor), "{index}", strconv.Itoa(g.Index), "{uuid}", g.UUID,
			"{multiarch}", machine.Multiarch).Replace
		for _, node := range r.Injection.Direct.Devices {
			if path := expand(node); !slices.Contains(a.DeviceNodes, path) {
				a.DeviceNodes = append(a.DeviceNodes, path)
			}
		}
		for _, m := range r.Injection.Direct.Mounts {
			a.mountOnce(Mount{Source: expand(m.Source), Destination: expand(m.Destination), Options: bindOptions(m.ReadOnly)})
		}
	}
}

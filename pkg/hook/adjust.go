package hook

import (
	"encoding/json"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/reach"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Rules are what decides, beside the container itself, how it is adjusted.
type Rules struct {
	Injection config.Injection
	// LibraryDir is the host's directory with this version's libraries.
	LibraryDir string
	// Interposer returns the host's directory with the interposer's libraries as they
	// are made for the node's driver; nil stands for LibraryDir.
	Interposer func() string
	// AgentDir is the host's directory with the agent's socket.
	AgentDir string
	// MPSDir is the host's directory in which clients find the daemon of the
	// Multi-Process Service, and SHMDir what they share with its server.
	MPSDir, SHMDir string
	// HasCDIDevice reports whether a CDI spec on the node defines a device.
	HasCDIDevice func(name string) bool
}

// Withhold decides on a container that asks for no GPU: it gets none, whatever
// its image and environment say.
func (r Rules) Withhold(c Container, rt Runtime) (Adjustment, error) {
	var a Adjustment
	if err := checkBypass(c, r.Injection.CDIKind); err != nil {
		return a, err
	}
	return a, a.setVisible(c, rt, noDevices)
}

// Check refuses a container that could not be held to any limits. It is asked
// before a GPU is chosen, so that such a container takes nobody's room.
func (r Rules) Check(c Container) error {
	if err := checkBypass(c, r.Injection.CDIKind); err != nil {
		return err
	}
	return checkMounts(c)
}

// Grant decides on a container that has been assigned a part of a GPU.
func (r Rules) Grant(c Container, rt Runtime, given Assignment) (Adjustment, error) {
	var a Adjustment
	if err := r.Check(c); err != nil {
		return a, err
	}
	if err := r.inject(&a, c, rt, given.GPUs); err != nil {
		return a, err
	}
	if r.interposes(given) {
		if err := checkAbove(c); err != nil {
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

// interposes reports whether a container gets the interposer: unless it has all
// of each of its GPUs there is something to hold it to.
func (r Rules) interposes(given Assignment) bool {
	return r.Injection.InterposeWholeGPUs || !given.whole() || given.byMPS()
}

// interposer is the directory of the libraries that containers get.
func (r Rules) interposer() string {
	if r.Interposer == nil {
		return r.LibraryDir
	}
	return r.Interposer()
}

// inject gives the container its GPUs, and hides all others from the NVIDIA
// runtime.
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
		// The GPU's own spec may set the variable, too: ours has to come
		// after it.
		a.CDIDevices = append(a.CDIDevices, envDevice(noDevices))
		return nil
	case config.InjectDirect:
		r.injectDirect(a, gpus)
		return a.setVisible(c, rt, noDevices)
	default:
		return a.setVisible(c, rt, visibleUUIDs(gpus))
	}
}

// method settles what "auto" means for these GPUs.
func (r Rules) method(c Container, rt Runtime, gpus []gpu.GPU) (string, error) {
	method := r.Injection.Method
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
		return "", c.refuse(ReasonInjection, "injection.method is cdi, but %s %s takes no CDI devices from plugins: set it to auto or env, or update to containerd 2.1 or CRI-O 1.34", rt.Name, rt.Version)
	default:
		return "", c.refuse(ReasonInjection, "no CDI spec in %s names %s: make one with nvidia-ctk cdi generate --device-name-strategy=uuid", strings.Join(r.Injection.CDISpecDirs, ", "), r.cdiName(gpus[missing]))
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

// injectDirect adds the configured device nodes and mounts, those that do not
// depend on the GPU once.
func (r Rules) injectDirect(a *Adjustment, gpus []gpu.GPU) {
	for _, g := range gpus {
		expand := strings.NewReplacer(
			"{minor}", strconv.Itoa(g.Minor), "{index}", strconv.Itoa(g.Index), "{uuid}", g.UUID).Replace
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

func (a *Adjustment) mountOnce(m Mount) {
	if !slices.ContainsFunc(a.Mounts, func(o Mount) bool { return o.Destination == m.Destination }) {
		a.Mounts = append(a.Mounts, m)
	}
}

func bind(source, destination string, options []string) Mount {
	return Mount{Source: source, Destination: destination, Options: options}
}

func bindOptions(readOnly bool) []string {
	access := "rw"
	if readOnly {
		access = "ro"
	}
	return []string{"rbind", access, "rprivate", "nosuid"}
}

// mountOurs adds the interposer and the container's files.
func (a *Adjustment) mountOurs(libraryDir, interposer, dir string) {
	ro, rw := bindOptions(true), bindOptions(false)
	preload := filepath.Join(libraryDir, layout.Preload)
	if len(a.Preload) > 0 {
		preload = filepath.Join(dir, layout.Preload)
	}
	for _, m := range []Mount{
		bind(filepath.Join(dir, limits.LimitsFile), layout.ContainerLimits, append(ro, "nodev", "noexec")),
		bind(filepath.Join(dir, limits.UsageFile), layout.ContainerUsage, append(rw, "nodev", "noexec")),
		bind(filepath.Join(interposer, layout.CUDALibrary), layout.ContainerCUDA, ro),
		bind(filepath.Join(interposer, layout.NVMLLibrary), layout.ContainerNVML, ro),
		bind(filepath.Join(libraryDir, layout.StandIns), layout.ContainerStandIns, ro),
		bind(preload, layout.ContainerPreload, append(ro, "nodev", "noexec")),
	} {
		m.Options = slices.Clone(m.Options)
		a.Mounts = append(a.Mounts, m)
	}
}

// mountAgent gives the container the way to the agent. The directory is mounted,
// not the socket, as the next agent makes another one.
func (a *Adjustment) mountAgent(dir string) {
	a.Mounts = append(a.Mounts, Mount{
		Source: dir, Destination: layout.ContainerAgent, Options: append(bindOptions(true), "nodev", "noexec"),
	})
}

// mountTools adds the programs that tell the container what it has and uses. In
// the search path they are a help and no more: where a volume of the user's has
// that place, it keeps it.
func (a *Adjustment) mountTools(c Container, libraryDir, dialect string) {
	paths := []string{layout.ContainerVgpuctl, path.Join(layout.ContainerPath, layout.Vgpuctl)}
	if dialect == request.DialectMetaGPU {
		paths = append(paths, layout.ContainerMgctl, path.Join(layout.ContainerPath, layout.Mgctl))
	}
	for _, tool := range paths {
		if path.Dir(tool) != layout.ContainerPath || !occupied(c.Mounts, tool) {
			a.Mounts = append(a.Mounts, bind(filepath.Join(libraryDir, layout.Vgpuctl), tool, bindOptions(true)))
		}
	}
}

// occupied reports whether a volume of the user's has a path, or one above or below
// it. In most images /bin is /usr/bin.
func occupied(mounts []Mount, tool string) bool {
	return slices.ContainsFunc(mounts, func(m Mount) bool {
		at := path.Clean("/" + m.Destination)
		return at != "/" && (reach.Within(tool, at) || reach.Within(at, tool) || reach.Within(strings.TrimPrefix(tool, "/usr"), at))
	})
}

// mountAssignment marks a container without the interposer as ours: unlike an
// annotation a mount from our directory cannot be written by a user.
func (a *Adjustment) mountAssignment(dir string) {
	a.Mounts = append(a.Mounts,
		bind(filepath.Join(dir, layout.Assignment), layout.ContainerAssignment, append(bindOptions(true), "nodev", "noexec")))
}

func (a *Adjustment) annotate(c Container, given Assignment) error {
	data, err := json.Marshal(given.Allocation)
	if err != nil {
		return c.refuse(ReasonState, "its assignment cannot be written down: %w", err)
	}
	a.Annotations = map[string]string{AssignmentAnnotation: string(data)}
	return nil
}

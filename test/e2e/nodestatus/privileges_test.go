package nodestatus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodereport"
)

// host is a directory with what agent, patcher and init container find of a node: an NRI
// runtime's socket, simulated GPUs and their driver, directories to write to.
type host struct {
	t         *testing.T
	dir, node string
	probes    string // where the agent answers kubelet
	runtime   *adaptation.Adaptation
}

// at is a directory of the host.
func (h *host) at(name string) string { return filepath.Join(h.dir, name) }

const built = "../../../build"

func newHost(t *testing.T) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "host") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the patcher is not root
		t.Fatal(err)
	}
	h := &host{t: t, dir: dir, node: unique("host")}
	t.Cleanup(func() { os.RemoveAll(dir) })
	gpusim, err := filepath.Abs(filepath.Join(built, "gpusim"))
	if err != nil {
		t.Fatal(err)
	}
	const script = `set -e; cd "$0"
mkdir run state opt plugins nri cdi-gpus cdi-ours dev config token driver driver/lib
cp "$1"/drivers/future/lib*.so.1 driver/lib
"$1/gpusim" create --gpus 1 --memory 17179869184 dev/gpusim
"$1/gpusim" cdi --driver-dir "$1" --device-dir "$0/dev/gpusim" >cdi-gpus/nvidia.yaml`
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", script, dir, gpusim).CombinedOutput(); err != nil {
		t.Fatalf("make a host: %v: %s", err, out)
	}
	ports, err := freePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	h.probes = fmt.Sprintf("http://127.0.0.1:%d/readyz", ports[1])
	text := fmt.Sprintf(`http = {address = "127.0.0.1:%d", probe_address = "127.0.0.1:%d"}
driver.nvml_library = "%[3]s/driver/lib/libnvidia-ml.so.1"
injection = {cdi_spec_dirs = ["%[3]s/cdi-gpus", "%[3]s/cdi-ours"], cdi_output_dir = "%[3]s/cdi-ours"}
nri.socket_path = "%[3]s/nri/nri.sock"
guard.plugin_dir = "%[3]s/plugins"
paths = {install_dir = "%[3]s/opt", run_dir = "%[3]s/run", state_dir = "%[3]s/state"}
`, ports[0], ports[1], dir)
	if err := os.WriteFile(h.at("config/config.toml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return h
}

// What can be missing besides directories of the host.
const (
	network = "the host's network"
	root    = "root"
)

// nonRoot is the user that the manifest gives to what need not be root.
const nonRoot = 65532

// start runs a program of ours as a user, with one of the host's directories missing, or its
// network, until the test ends. ended is closed when the program does, with err set.
func (h *host) start(missing string, user int, name string, args ...string) *running {
	h.t.Helper()
	program, err := filepath.Abs(filepath.Join(built, "bin", name))
	if err != nil {
		h.t.Fatal(err)
	}
	script, namespaces := `exec "$@"`, []string{"--mount", "--propagation", "private"}
	switch missing {
	case "":
	case root:
		user = nonRoot
	case network:
		namespaces = append(namespaces, "--net")
	default:
		script = `mount -t tmpfs -o ro,size=4k none "$0" && exec "$@"`
	}
	command := slices.Concat(namespaces, []string{"--", "sh", "-c", script, h.at(missing),
		"setpriv", "--reuid", fmt.Sprint(user), "--regid", fmt.Sprint(user), "--clear-groups", program}, args)
	r := &running{ended: make(chan struct{})}
	cmd := exec.Command("unshare", command...)
	cmd.Env = append(os.Environ(), "NODE_NAME="+h.node, "GPUSIM_STATE="+h.at("dev/gpusim/state"))
	cmd.Stdout, cmd.Stderr = &r.log, &r.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		r.err = cmd.Wait()
		close(r.ended)
	}()
	h.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-r.ended
	})
	return r
}

type running struct {
	log   bytes.Buffer
	err   error
	ended chan struct{}
}

// account writes a kubeconfig with the token that a service account has.
func (h *host) account(name string) string {
	h.t.Helper()
	cfg, err := credentials(h.t.Context(), plane.admin, name, h.node)
	if err != nil {
		h.t.Fatal(err)
	}
	path := h.at("token/kubeconfig")
	writeKubeconfig(h.t, cfg, path)
	if err := os.Chmod(path, 0o644); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// install is what the init container does.
func (h *host) install(missing string) error {
	source, err := filepath.Abs(built)
	if err != nil {
		return err
	}
	r := h.start(missing, 0, "nri-vgpu", "install", "--config", h.at("config/config.toml"), "--source", source)
	<-r.ended
	if r.err != nil {
		return fmt.Errorf("%w: %s", r.err, r.log.String())
	}
	return errors.Join(there(h.at("opt/*/libcuda.so.1")), there(h.at("plugins/*")))
}

// uninstall is what the container does that cleans a node: here in its own root.
func (h *host) uninstall(missing string) error {
	if err := h.install(""); err != nil {
		return err
	}
	r := h.start(missing, 0, "nri-vgpu", "uninstall", "--config", h.at("config/config.toml"))
	<-r.ended
	if there(h.at("opt/*/libcuda.so.1")) == nil || there(h.at("plugins/*guard*")) == nil {
		return fmt.Errorf("it is still installed: %s", r.log.String())
	}
	return nil
}

// removes takes off a Node what a patcher has put there.
func (h *host) removes(missing string) error {
	w := &world{t: h.t, node: h.node, report: h.at("run/" + nodereport.FileName), admin: clientOf(h.t, plane.admin)}
	w.register()
	defer w.remove()
	w.patch(`{"metadata":{"annotations":{"nri-vgpu.io/advertised":"` + memory + `"}}}`)
	w.patch(hostile("5"))
	r := h.start(missing, nonRoot, account, "remove", "--config", h.at("config/config.toml"), "--kubeconfig", h.account(account), "--timeout", "5s")
	<-r.ended
	node, err := w.admin.CoreV1().Nodes().Get(h.t.Context(), w.node, metav1.GetOptions{})
	if err == nil && units(node.Status.Capacity) != 0 {
		err = fmt.Errorf("the Node still has resources of ours: %s", r.log.String())
	}
	return err
}

func there(pattern string) error {
	if found, err := filepath.Glob(pattern); err != nil || len(found) == 0 {
		return fmt.Errorf("there is no %s on the host", filepath.Base(pattern))
	}
	return nil
}

// agent starts an agent beside a runtime.
func (h *host) agent(missing string) *running {
	h.t.Helper()
	if err := h.install(""); err != nil {
		h.t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.node}}
	if _, err := clientOf(h.t, plane.admin).CoreV1().Nodes().Create(h.t.Context(), node, metav1.CreateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	var err error
	h.runtime, err = adaptation.New("containerd", "v2.4.2",
		func(ctx context.Context, cb adaptation.SyncCB) error { _, err := cb(ctx, nil, nil); return err },
		func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil },
		adaptation.WithSocketPath(h.at("nri/nri.sock")), adaptation.WithPluginPath(h.at("none")), adaptation.WithPluginConfigPath(h.at("none")))
	if err == nil {
		err = h.runtime.Start()
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(h.runtime.Stop)
	return h.start(missing, 0, "nri-vgpu", "--config", h.at("config/config.toml"), "--kubeconfig", h.account("nri-vgpu"))
}

// sees is what the agent reports of the node.
func (h *host) sees(what string, ok func(nodereport.Report) bool) error {
	return within(symptom, what, func() bool {
		report, err := nodereport.Read(h.at("run/" + nodereport.FileName))
		return err == nil && ok(report)
	})
}

func (h *host) reports() error {
	return h.sees("there is a report", func(nodereport.Report) bool { return true })
}

func (h *host) registers() error {
	return h.sees("the agent is registered", func(r nodereport.Report) bool { return r.PluginRegistered })
}

func (h *host) findsGPUs() error {
	return h.sees("the agent sees the GPU", func(r nodereport.Report) bool { return len(r.GPUs) == 1 })
}

// creates has the runtime create a container that asks for a part of the GPU.
func (h *host) creates() (*api.ContainerAdjustment, error) {
	if err := errors.Join(h.registers(), h.findsGPUs()); err != nil {
		return nil, err
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "asks-", Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{NodeName: h.node, Containers: []corev1.Container{{Name: "main", Image: "none",
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{memory: resource.MustParse("1024")}}}}},
	}
	admin := clientOf(h.t, plane.admin)
	if err := defaultAccount(h.t); err != nil {
		return nil, err
	}
	pod, err := admin.CoreV1().Pods(pod.Namespace).Create(h.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	var answer *api.CreateContainerResponse
	err = within(symptom, "the container is created", func() bool {
		answer, err = h.runtime.CreateContainer(h.t.Context(), &api.CreateContainerRequest{
			Pod:       &api.PodSandbox{Id: "s" + string(pod.UID), Uid: string(pod.UID), Name: pod.Name, Namespace: pod.Namespace},
			Container: &api.Container{Id: "c" + string(pod.UID), PodSandboxId: "s" + string(pod.UID), Name: "main", Args: []string{"main"}},
		})
		return err == nil
	})
	return answer.GetAdjust(), errors.Join(err)
}

// defaultAccount is there, as no controller makes it here.
func defaultAccount(t *testing.T) error {
	t.Helper()
	accounts := clientOf(t, plane.admin).CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	_, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if err != nil && !strings.Contains(err.Error(), "already exists") {
		return err
	}
	return nil
}

// Kubelet asks at the node's loopback.
func (h *host) answersKubelet() error {
	client := http.Client{Timeout: time.Second}
	return within(2*symptom, "the agent is ready for kubelet", func() bool {
		answer, err := client.Get(h.probes)
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}

func (h *host) givesGPU() error { _, err := h.creates(); return err }

// The driver has names that our libraries, as they are built, lack.
func (h *host) makesLibraries() error {
	return errors.Join(h.givesGPU(), there(h.at("opt/*/drivers/*")))
}

func (h *host) givesCDIDevice() error {
	adjusted, err := h.creates()
	if err != nil {
		return err
	}
	for _, device := range adjusted.GetCDIDevices() {
		if strings.HasPrefix(device.GetName(), "nvidia.com/gpu=") {
			return nil
		}
	}
	return errors.New("the container gets the GPU as no CDI device")
}

func (h *host) listsAskingPods() error {
	if _, err := h.creates(); err != nil {
		return err
	}
	return within(symptom, "the pod is listed for the guard", func() bool {
		text, err := os.ReadFile(layout.AskingPods(h.at("state")))
		return err == nil && len(text) > 50
	})
}

// advertised is what the patcher does with what an agent has written.
func (h *host) advertised(missing string) error {
	w := &world{t: h.t, node: h.node, report: h.at("run/" + nodereport.FileName), admin: clientOf(h.t, plane.admin)}
	w.register()
	defer w.remove()
	w.agentReports(true)
	h.start(missing, nonRoot, account, "--config", h.at("config/config.toml"), "--kubeconfig", h.account(account),
		"--http-address=", "--probe-address=")
	return w.offers(symptom, "the Node offers its GPU")
}

// TestEachPrivilegeIsNeeded: with all of a node's directories that the manifest mounts, agent,
// patcher and init container do their work; without any one of them they do not.
func TestEachPrivilegeIsNeeded(t *testing.T) {
	agent := func(does func(*host) error) func(*host, string) error {
		return func(h *host, missing string) error {
			r := h.agent(missing)
			err := does(h)
			if err != nil {
				select {
				case <-r.ended:
					err = fmt.Errorf("%w: %s", err, r.log.String())
				default:
				}
			}
			return err
		}
	}
	install := (*host).install
	for _, row := range []struct {
		container, missing string
		does               func(h *host, missing string) error
	}{
		{"install", "config", install},
		{"install", "opt", install},
		{"install", "plugins", install},
		{"install", root, install},
		{"agent", root, agent((*host).registers)},
		{"agent", "config", agent((*host).reports)},
		{"agent", "token", agent((*host).reports)},
		{"agent", "run", agent((*host).reports)},
		{"agent", "state", agent((*host).listsAskingPods)},
		{"agent", "opt", agent((*host).makesLibraries)},
		{"agent", network, agent((*host).answersKubelet)},
		{"agent", "nri", agent((*host).registers)},
		{"agent", "cdi-gpus", agent((*host).givesCDIDevice)},
		{"agent", "cdi-ours", agent((*host).givesGPU)},
		{"agent", "dev", agent((*host).findsGPUs)},
		{"agent", "driver", agent((*host).findsGPUs)},
		{"patcher", "config", (*host).advertised},
		{"patcher", "token", (*host).advertised},
		{"patcher", "run", (*host).advertised},
		{"cleanup", root, (*host).uninstall},
		{"cleanup", "opt", (*host).uninstall},
		{"cleanup", "plugins", (*host).uninstall},
		{"cleanup", "token", (*host).removes},
	} {
		t.Run(row.container+"/"+row.missing, func(t *testing.T) {
			t.Parallel()
			if err := row.does(newHost(t), ""); err != nil {
				t.Fatalf("with everything: %v", err)
			}
			err := row.does(newHost(t), row.missing)
			if err == nil {
				t.Error("nothing breaks without it")
			}
			t.Log(err)
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/internal/mps"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// install runs the work of the init container.
func (h *host) install(missing string) error {
	source, err := filepath.Abs(built)
	if err != nil {
		return err
	}
	err = h.start(missing, 0, "nri-vgpu", "install", "--config", h.at("config/config.toml"), "--source", source).wait()
	if err != nil {
		return err
	}
	return errors.Join(there(h.at("opt/*/libcuda.so.1")), there(h.at("plugins/*")))
}

func there(pattern string) error {
	if found, err := filepath.Glob(pattern); err != nil || len(found) == 0 {
		return fmt.Errorf("there is no %s on the host", filepath.Base(pattern))
	}
	return nil
}

// startRuntime starts the programs that an agent needs.
func (h *host) startRuntime() {
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
}

func (h *host) startAgent(missing string) {
	h.t.Helper()
	h.agent = h.start(missing, 0, "nri-vgpu", "--config", h.at("config/config.toml"), "--kubeconfig", h.account("nri-vgpu"))
}

// sees waits until the agent's report of the node satisfies a condition.
func (h *host) sees(what string, ok func(nodereport.Report) bool) error {
	return eventually.Wait(symptom, what, func() bool {
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

// kubelet lists a GPU of another device plugin, which this node does not have.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (kubelet) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{Devices: []*podresources.ContainerDevices{{ResourceName: plugged, DeviceIds: []string{"GPU-other"}}}}, nil
}

func (kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{}, nil
}

// plugged is a resource of another device plugin.
const plugged = "nvidia.com/gpu"

// offersBesidePlugin checks that the agent offers its GPU beside another GPU of another device
// plugin. Only kubelet knows which GPU the plugin offers.
func (h *host) offersBesidePlugin() error {
	listener, err := net.Listen("unix", h.at("pod-resources/kubelet.sock"))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, kubelet{})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	for _, step := range []struct {
		capacity int
		healthy  bool
	}{{2, false}, {1, true}} { // kubelet lists one device
		patch := fmt.Sprintf(`{"status":{"capacity":{%q:"%d"}}}`, plugged, step.capacity)
		if _, err := clientOf(h.t, plane.admin).CoreV1().Nodes().Patch(h.t.Context(), h.node, types.MergePatchType,
			[]byte(patch), metav1.PatchOptions{}, "status"); err != nil {
			return err
		}
		err := h.sees(fmt.Sprintf("with a capacity of %d, the GPU's health is %t", step.capacity, step.healthy), func(r nodereport.Report) bool {
			return len(r.GPUs) == 1 && r.GPUs[0].Healthy == step.healthy
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// created is a container that requests a part of the GPU, with the agent's adjustment.
type created struct {
	pod       *api.PodSandbox
	container *api.Container
	adjusted  *api.ContainerAdjustment
}

// creates makes the runtime create a container.
func (h *host) creates() (c created, err error) {
	if err := errors.Join(h.registers(), h.findsGPUs()); err != nil {
		return c, err
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "asks-", Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{NodeName: h.node, Containers: []corev1.Container{{Name: "main", Image: "none",
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{memory: resource.MustParse("1024")}}}}},
	}
	admin := clientOf(h.t, plane.admin)
	if err := serviceAccount(h.t, metav1.NamespaceDefault, "default"); err != nil {
		return c, err
	}
	pod, err = admin.CoreV1().Pods(pod.Namespace).Create(h.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		return c, err
	}
	uid := string(pod.UID)
	c.pod = &api.PodSandbox{Id: "s" + uid, Uid: uid, Name: pod.Name, Namespace: pod.Namespace}
	c.container = &api.Container{Id: "c" + uid, PodSandboxId: "s" + uid, Name: "main", Args: []string{"main"}}
	late := eventually.Wait(symptom, "the container is created", func() bool {
		var answer *api.CreateContainerResponse
		answer, err = h.runtime.CreateContainer(h.t.Context(), &api.CreateContainerRequest{Pod: c.pod, Container: c.container})
		c.adjusted = answer.GetAdjust()
		return err == nil
	})
	return c, errors.Join(late, err)
}

// serviceAccount makes an account, because no controller runs here.
func serviceAccount(t *testing.T, namespace, name string) error {
	t.Helper()
	accounts := clientOf(t, plane.admin).CoreV1().ServiceAccounts(namespace)
	_, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// answersKubelet checks the probes at the node's loopback, as kubelet does.
func (h *host) answersKubelet() error {
	client := http.Client{Timeout: time.Second}
	return eventually.Wait(2*symptom, "the agent is ready for kubelet", func() bool {
		answer, err := client.Get(h.probes)
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}

func (h *host) givesGPU() error { _, err := h.creates(); return err }

// makesLibraries checks the copies of our libraries for a driver with names that the built
// libraries lack.
func (h *host) makesLibraries() error {
	return errors.Join(h.givesGPU(), there(h.at("opt/*/drivers/*")))
}

func (h *host) givesCDIDevice() error {
	c, err := h.creates()
	if err != nil {
		return err
	}
	for _, device := range c.adjusted.GetCDIDevices() {
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
	return eventually.Wait(symptom, "the pod is listed for the guard", func() bool {
		text, err := os.ReadFile(paths.AskingPods(h.at("state")))
		return err == nil && len(text) > 50
	})
}

// startsContainer makes the runtime create a container, makes the container's mounts, and makes the
// runtime start the container.
func (h *host) startsContainer() error {
	c, err := h.creates()
	if err != nil {
		return err
	}
	pid, err := h.container(c.adjusted.GetMounts())
	if err != nil {
		return err
	}
	c.container.Pid, c.container.Mounts = uint32(pid), c.adjusted.GetMounts()
	return h.runtime.StartContainer(h.t.Context(), &api.StartContainerRequest{Pod: c.pod, Container: c.container})
}

// agentLeavesMPS ends an agent that shares the GPU by MPS.
func (h *host) agentLeavesMPS(missing string) error {
	h.configure(`sharing.method = "mps"`)
	h.startRuntime()
	h.asFirst(`"$@" & agent=$!
until [ -e "$NODE/end" ]; do sleep .05; done
kill -KILL $agent; wait $agent
touch "$NODE/ended"; exec sleep infinity`)
	h.t.Cleanup(func() {
		cgroups, _ := filepath.Glob("/sys/fs/cgroup/*/" + mps.Cgroup)
		for _, dir := range append(cgroups, "/sys/fs/cgroup/"+mps.Cgroup) {
			// The processes of this test may take a moment to end. Processes of other tests may
			// stay.
			_ = eventually.Wait(promptly, dir+" is gone", func() bool {
				err := os.Remove(dir)
				return err == nil || errors.Is(err, os.ErrNotExist)
			})
		}
	})
	h.startAgent(missing)
	if err := h.givesGPU(); err != nil {
		h.agent.kill()
		return fmt.Errorf("%w: %s", err, h.agent.log.String())
	}
	if !h.mpsAnswers() {
		return errors.New("containers are created without an MPS control daemon")
	}
	if err := os.WriteFile(h.at("node/end"), nil, 0o600); err != nil {
		return err
	}
	if err := eventually.Wait(symptom, "the agent ends", func() bool { return there(h.at("node/ended")) == nil }); err != nil {
		return err
	}
	if err := eventually.Wait(promptly, "the daemon ends", func() bool { return !h.mpsAnswers() }); err == nil {
		return errors.New("the MPS control daemon has ended with the agent")
	}
	return nil
}

func (h *host) mpsProgram() string {
	h.t.Helper()
	program, err := filepath.Abs(filepath.Join(built, "gpusim", "nvidia-cuda-mps-control"))
	if err != nil {
		h.t.Fatal(err)
	}
	return program
}

// mpsAnswers reports whether an MPS control daemon runs.
func (h *host) mpsAnswers() bool {
	cmd := exec.Command(h.mpsProgram())
	cmd.Env, cmd.Stdin = []string{"CUDA_MPS_PIPE_DIRECTORY=" + paths.MPSPipes(h.at("run"))}, strings.NewReader("get_server_list\n")
	return cmd.Run() == nil
}

// admitted makes the API server check the agent's DaemonSet.
func (h *host) admitted(missing string) error {
	content, err := os.ReadFile(manifest)
	if err != nil {
		return err
	}
	for document := range bytes.SplitSeq(content, []byte("\n---\n")) {
		var set appsv1.DaemonSet
		if err := yaml.Unmarshal(document, &set); err != nil || set.Kind != "DaemonSet" || set.Name != "nri-vgpu" {
			continue
		}
		set.Name = unique("agent")
		if missing == privileged {
			set.Spec.Template.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
				Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"ALL"}},
			}
		}
		_, err = clientOf(h.t, plane.admin).AppsV1().DaemonSets(set.Namespace).Create(h.t.Context(), &set,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	return errors.New("the manifest has no agent")
}

// advertised checks that the patcher advertises an agent's report.
func (h *host) advertised(missing string) error {
	w := &world{t: h.t, node: h.node, report: h.at("run/" + nodereport.FileName), admin: clientOf(h.t, plane.admin)}
	w.register()
	defer w.remove()
	w.agentReports(true)
	h.start(missing, nonRoot, account, "--config", h.at("config/config.toml"), "--kubeconfig", h.account(account),
		"--http-address=", "--probe-address=")
	return w.offers(symptom, "the Node offers its GPU")
}

// TestEachPrivilegeIsNeeded checks that agent, patcher and init container work with all privileges
// and directories of the manifest. If any single privilege or directory is missing, one of these
// programs fails.
func TestEachPrivilegeIsNeeded(t *testing.T) {
	agent := func(does func(*host) error) func(*host, string) error {
		return func(h *host, missing string) error {
			h.startRuntime()
			h.startAgent(missing)
			err := does(h)
			if err != nil {
				select {
				case <-h.agent.ended:
					err = fmt.Errorf("%w: %s", err, h.agent.log.String())
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
		phrase             string // the error without the privilege, if the row names an error
	}{
		{"install", "config", install, ""},
		{"install", "opt", install, ""},
		{"install", "plugins", install, ""},
		{"install", root, install, ""},
		{"agent", root, agent((*host).registers), ""},
		{"agent", "config", agent((*host).reports), ""},
		{"agent", "token", agent((*host).reports), ""},
		{"agent", "run", agent((*host).reports), ""},
		{"agent", "state", agent((*host).listsAskingPods), ""},
		{"agent", "opt", agent((*host).makesLibraries), ""},
		{"agent", network, agent((*host).answersKubelet), ""},
		{"agent", hostPID, agent((*host).startsContainer), "is in another pid namespace"},
		{"agent", hostPID + ", by MPS", (*host).agentLeavesMPS, "has ended with the agent"},
		{"agent", privileged, agent((*host).givesGPU), "mount the usage page's file system"},
		{"agent", privileged + ", to the API server", (*host).admitted, "Bidirectional"},
		{"agent", "nri", agent((*host).registers), ""},
		{"agent", "cdi-gpus", agent((*host).givesCDIDevice), ""},
		{"agent", "cdi-ours", agent((*host).givesGPU), ""},
		{"agent", "dev", agent((*host).findsGPUs), ""},
		{"agent", "pod-resources", agent((*host).offersBesidePlugin), ""},
		{"agent", "driver", agent((*host).findsGPUs), ""},
		{"patcher", "config", (*host).advertised, ""},
		{"patcher", "token", (*host).advertised, ""},
		{"patcher", "run", (*host).advertised, ""},
		{"cleanup", root, (*host).uninstall, ""},
		{"cleanup", privileged, (*host).uninstall, "unmount"},
		{"cleanup", privileged + ", by MPS", (*host).endsMPS, "failed to stop an MPS control daemon"},
		{"cleanup", "opt", (*host).uninstall, ""},
		{"cleanup", "plugins", (*host).uninstall, ""},
		{"cleanup", "token", (*host).removes, ""},
		{"begin", "token", (*host).begins, "kubeconfig"},
		{"await", "token", (*host).awaits, "kubeconfig"},
	} {
		t.Run(row.container+"/"+row.missing, func(t *testing.T) {
			t.Parallel()
			if err := row.does(newHost(t), ""); err != nil {
				t.Fatalf("with everything: %v", err)
			}
			missing, _, _ := strings.Cut(row.missing, ", ")
			err := row.does(newHost(t), missing)
			if err == nil {
				t.Error("nothing breaks without it")
			} else if !strings.Contains(err.Error(), row.phrase) {
				t.Errorf("something else breaks, want %q: %v", row.phrase, err)
			}
			t.Log(err)
		})
	}
}

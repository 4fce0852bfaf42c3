// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// nodeAPI serves list, watch and status patches of one Node over HTTP, and counts the patches.
// nodeAPI can also fail on request, unlike a real API server. The suite in test/e2e runs the
// patcher with a real API server.
type nodeAPI struct {
	t    *testing.T
	name string
	url  string

	mu       sync.Mutex
	node     *corev1.Node
	version  int
	watchers map[chan metav1.WatchEvent]struct{}
	patches  int
	failWith int // HTTP status of the next patches; 0 serves the patches
}

func newNodeAPI(t *testing.T) *nodeAPI {
	api := &nodeAPI{t: t, name: testNode, version: 1, watchers: map[chan metav1.WatchEvent]struct{}{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes", api.read)
	mux.HandleFunc("PATCH /api/v1/nodes/{name}/status", api.patch)
	mux.HandleFunc("PATCH /api/v1/nodes/{name}", api.patchTaints)
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	api.url = server.URL
	return api
}

func (a *nodeAPI) client() kubernetes.Interface {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: a.url})
	if err != nil {
		a.t.Fatal(err)
	}
	return client
}

func (a *nodeAPI) read(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if got, want := query.Get("fieldSelector"), "metadata.name="+a.name; got != want {
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf("field selector is %q", got))
		return
	}
	if query.Get("watch") == "" {
		a.list(w)
		return
	}
	if query.Get("sendInitialEvents") != "" {
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "sendInitialEvents is not supported")
		return
	}
	a.watch(w, r)
}

func (a *nodeAPI) list(w http.ResponseWriter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
	list.ResourceVersion = strconv.Itoa(a.version)
	if a.node != nil {
		list.Items = append(list.Items, *a.node)
	}
	answerJSON(w, http.StatusOK, list)
}

func (a *nodeAPI) watch(w http.ResponseWriter, r *http.Request) {
	events := make(chan metav1.WatchEvent, 1000)
	a.mu.Lock()
	// A test may have stored the Node between the list and the watch.
	if a.node != nil && r.URL.Query().Get("resourceVersion") != strconv.Itoa(a.version) {
		events <- a.event(watch.Added, a.node)
	}
	a.watchers[events] = struct{}{}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.watchers, events)
	}()
	w.Header().Set("Content-Type", "application/json")
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case event := <-events:
			if json.NewEncoder(w).Encode(event) != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

func (a *nodeAPI) patch(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.patches++
	switch {
	case a.failWith != 0:
		refuse(w, a.failWith, metav1.StatusReasonInternalError, "asked to fail")
		return
	case r.Header.Get("Content-Type") != string(types.StrategicMergePatchType):
		refuse(w, http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, r.Header.Get("Content-Type"))
		return
	case a.node == nil || r.PathValue("name") != a.name:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no such node")
		return
	}
	a.apply(body)
	answerJSON(w, http.StatusOK, a.node)
}

// patchTaints serves a merge patch of the Node's taints, if the patch names the Node's version.
func (a *nodeAPI) patchTaints(w http.ResponseWriter, r *http.Request) {
	var patch struct {
		Metadata struct{ ResourceVersion string }
		Spec     struct{ Taints []corev1.Taint }
	}
	err := json.NewDecoder(r.Body).Decode(&patch)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.patches++
	switch {
	case a.failWith != 0:
		refuse(w, a.failWith, metav1.StatusReasonInternalError, "asked to fail")
	case err != nil || r.Header.Get("Content-Type") != string(types.MergePatchType):
		refuse(w, http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, r.Header.Get("Content-Type"))
	case a.node == nil || patch.Metadata.ResourceVersion != a.node.ResourceVersion:
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict, "the node is another")
	default:
		node := a.node.DeepCopy()
		node.Spec.Taints = patch.Spec.Taints
		a.store(watch.Modified, node)
		answerJSON(w, http.StatusOK, a.node)
	}
}

// apply applies a merge patch. The caller holds a.mu.
func (a *nodeAPI) apply(mergePatch []byte) {
	a.store(watch.Modified, a.merge(a.node, mergePatch))
}

func (a *nodeAPI) merge(node *corev1.Node, mergePatch []byte) *corev1.Node {
	before, err := json.Marshal(node)
	if err != nil {
		a.t.Error(err)
	}
	after, err := strategicpatch.StrategicMergePatch(before, mergePatch, corev1.Node{})
	if err != nil {
		a.t.Error(err)
	}
	merged := &corev1.Node{}
	if err := json.Unmarshal(after, merged); err != nil {
		a.t.Error(err)
	}
	return merged
}

// store stores and publishes a state of the Node. The caller holds a.mu.
func (a *nodeAPI) store(kind watch.EventType, node *corev1.Node) {
	a.version++
	node.ResourceVersion = strconv.Itoa(a.version)
	event := a.event(kind, node)
	for events := range a.watchers {
		events <- event
	}
	a.node = node
	if kind == watch.Deleted {
		a.node = nil
	}
}

func (a *nodeAPI) event(kind watch.EventType, node *corev1.Node) metav1.WatchEvent {
	raw, err := json.Marshal(node)
	if err != nil {
		a.t.Error(err)
	}
	event := metav1.WatchEvent{Type: string(kind)}
	event.Object.Raw = raw
	return event
}

// create registers the node as kubelet does.
func (a *nodeAPI) create() { a.createWith("{}") }

// createWith registers the node with earlier patches of other programs.
func (a *nodeAPI) createWith(mergePatch string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: a.name, UID: types.UID(strconv.Itoa(a.version))},
		Status: corev1.NodeStatus{
			Capacity:    resourceList(map[string]string{"cpu": "2"}),
			Allocatable: resourceList(map[string]string{"cpu": "2"}),
		},
	}
	a.store(watch.Added, a.merge(node, []byte(mergePatch)))
}

func (a *nodeAPI) delete() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.store(watch.Deleted, a.node)
}

// interfere applies a patch of another program.
func (a *nodeAPI) interfere(mergePatch string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.apply([]byte(mergePatch))
}

// breakWith makes patches fail with an HTTP status; 0 makes patches succeed.
func (a *nodeAPI) breakWith(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failWith = status
}

func (a *nodeAPI) patchCount() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.patches
}

// extended returns the Node's extended resources. extended returns nil if capacity and allocatable
// differ, or if no Node exists.
func (a *nodeAPI) extended() Resources {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.node == nil {
		return nil
	}
	capacity, allocatable := extendedOf(a.node.Status.Capacity), extendedOf(a.node.Status.Allocatable)
	if fmt.Sprint(capacity) != fmt.Sprint(allocatable) {
		return nil
	}
	return capacity
}

func extendedOf(list corev1.ResourceList) Resources {
	found := Resources{}
	for name, quantity := range list {
		if isExtendedResource(string(name)) {
			found[string(name)] = quantity.Value()
		}
	}
	return found
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	answerJSON(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Reason: reason, Message: message, Code: int32(code),
	})
}

func answerJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client may have disconnected
}

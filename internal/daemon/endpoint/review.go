// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
)

const (
	// reviewPatience bounds the wait for the API server.
	reviewPatience = 800 * time.Millisecond
	// remembered is the time for which an allowed token is cached, and for which a revoked right
	// may remain in force.
	remembered = time.Minute
	// mostRemembered bounds the number of cached tokens.
	mostRemembered = 128
	// mostReviews is the greatest number of concurrent reviews.
	mostReviews = 16
	// reviewBurst is the number of immediate reviews of a client, reviewRate its later
	// reviews per second.
	reviewBurst, reviewRate = 10, 2
	// mostClients bounds the number of clients whose rates the reviewer tracks.
	mostClients = 1024
)

// reviewer has the API server authenticate and authorize requests. reviewer fails closed.
type reviewer struct {
	client  kubernetes.Interface
	log     *slog.Logger
	allowed *cache.LRUExpireCache // by token and request
	paces   *cache.LRUExpireCache // a *rate.Limiter for each client
	free    chan struct{}         // a semaphore for concurrent reviews
	said    rate.Sometimes
}

func newReviewer(client kubernetes.Interface, log *slog.Logger) *reviewer {
	return &reviewer{
		client: client, log: log,
		allowed: cache.NewLRUExpireCache(mostRemembered), paces: cache.NewLRUExpireCache(mostClients),
		free: make(chan struct{}, mostReviews), said: rate.Sometimes{Interval: time.Minute},
	}
}

// Reviews returns the client of a reviewer. The client has no rate limit, because the reviewer
// limits rates.
func Reviews(cfg *rest.Config) (kubernetes.Interface, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a Kubernetes client for reviews of tokens: %w", err)
	}
	return client, nil
}

// asked is a token and the request with the token. asked contains only a hash of the token.
type asked struct {
	token      [sha256.Size]byte
	verb, path string
}

// refusal is the reason that a request is rejected.
type refusal struct {
	status int
	text   string
}

func (e *refusal) Error() string { return e.text }

// require returns a handler that passes a request to next only if the API server allows the
// request.
func (v *reviewer) require(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := v.check(r)
		var no *refusal
		switch {
		case err == nil:
			next.ServeHTTP(w, r)
		case errors.As(err, &no):
			if no.status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			http.Error(w, no.text, no.status)
		default:
			v.said.Do(func() {
				v.log.Error("failed to have the API server review a token; refusing requests", "error", err)
			})
			http.Error(w, "failed to ask the API server for the reader's rights; retry", http.StatusServiceUnavailable)
		}
	})
}

func (v *reviewer) check(r *http.Request) error {
	token := tokenOf(r.Header)
	if token == "" {
		return &refusal{http.StatusUnauthorized, "send a bearer token of the cluster"}
	}
	what := asked{sha256.Sum256([]byte(token)), strings.ToLower(r.Method), r.URL.Path}
	if _, ok := v.allowed.Get(what); ok {
		return nil
	}
	if !v.pace(clientOf(r.RemoteAddr)).Allow() {
		return &refusal{http.StatusTooManyRequests, "too many tokens from this address; retry"}
	}
	select {
	case v.free <- struct{}{}:
		defer func() { <-v.free }()
	default:
		return &refusal{http.StatusServiceUnavailable, "too many token reviews at once; retry"}
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewPatience)
	defer cancel()
	if err := v.review(ctx, token, what); err != nil {
		return err
	}
	v.allowed.Add(what, true, remembered)
	return nil
}

// tokenOf returns the client's token, or "".
func tokenOf(header http.Header) string {
	if token := header.Get(agentapi.TokenHeader); token != "" {
		return token
	}
	scheme, token, _ := strings.Cut(header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// pace returns the rate limiter of a client's reviews.
func (v *reviewer) pace(client netip.Addr) *rate.Limiter {
	if known, ok := v.paces.Get(client); ok {
		return known.(*rate.Limiter)
	}
	limiter := rate.NewLimiter(reviewRate, reviewBurst)
	v.paces.Add(client, limiter, time.Hour)
	return limiter
}

// review sends a TokenReview and a SubjectAccessReview to the API server.
func (v *reviewer) review(ctx context.Context, token string, what asked) error {
	said, err := v.client.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a TokenReview: %w", err)
	}
	if !said.Status.Authenticated {
		return &refusal{http.StatusUnauthorized, "the API server does not know this token"}
	}
	user := said.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	access, err := v.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: what.path, Verb: what.verb},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a SubjectAccessReview: %w", err)
	}
	if !access.Status.Allowed {
		return &refusal{http.StatusForbidden, fmt.Sprintf("%s may not %s %s: bind the account to a ClusterRole with this nonResourceURL", user.Username, what.verb, what.path)}
	}
	return nil
}

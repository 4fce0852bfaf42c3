// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	kubetesting "k8s.io/client-go/testing"

	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

// apiServer authenticates tokens, and allows the path /view/*.
type apiServer struct {
	known     func(token string) (account string)
	audiences []string // of the tokens
	tokens    int      // reviews of tokens
	paths     []string // of reviews of rights
}

func (s *apiServer) access() Access {
	client := fake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(action kubetesting.Action) (bool, runtime.Object, error) {
		review := action.(kubetesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		s.tokens++
		review.Status.User.Username = s.known(review.Spec.Token)
		review.Status.Authenticated, review.Status.Audiences = review.Status.User.Username != "", s.audiences
		return true, review, nil
	})
	client.PrependReactor("create", "subjectaccessreviews", func(action kubetesting.Action) (bool, runtime.Object, error) {
		review := action.(kubetesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		s.paths = append(s.paths, review.Spec.NonResourceAttributes.Path)
		review.Status.Allowed = review.Spec.User != "tenant" && review.Spec.NonResourceAttributes.Path == "/view/*"
		return true, review, nil
	})
	return Access{Reviews: client, Path: "/view/*"}
}

// accounts knows tokens that begin with the name of an account.
func accounts(token string) string {
	for _, account := range []string{"viewer", "tenant"} {
		if strings.HasPrefix(token, account) {
			return account
		}
	}
	return ""
}

// ask returns the status of the answer to a request with a token. All requests come from one address,
// as through the API server.
func ask(t *testing.T, handler http.Handler, path, token string) int {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
	request.Header.Set("Authorization", "Bearer "+token)
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, request)
	return answer.Code
}

func reviewed(access Access) http.Handler {
	done := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	return newReviewer(access, slog.New(slog.DiscardHandler)).require(done)
}

// TestManyUsersOfOneAddress checks that many users may open the page from one address. A token is
// reviewed once a minute for all paths.
func TestManyUsersOfOneAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{known: accounts}
		handler := reviewed(s.access())
		const users = 50
		load := func() {
			t.Helper()
			for i := range users {
				for _, path := range []string{"/view/", "/view/view.css", "/view/view.js", "/view/fleet"} {
					if status := ask(t, handler, path, fmt.Sprint("viewer", i)); status != http.StatusOK {
						t.Errorf("user %d gets %d for %s", i, status, path)
					}
				}
			}
		}
		load()
		load()
		if s.tokens != users || len(s.paths) != users || s.paths[0] != "/view/*" {
			t.Errorf("%d users took %d reviews of tokens, and of %q", users, s.tokens, s.paths)
		}
		time.Sleep(remembered)
		load()
		if s.tokens != 2*users {
			t.Errorf("after a minute, %d users took %d reviews", users, s.tokens)
		}
	})
}

// TestRefusedTokens checks that refused tokens of an address are reviewed at a bounded rate. A token
// that was allowed within the last hour is reviewed at once, until it is refused.
func TestRefusedTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		withdrawn := false
		s := &apiServer{known: func(token string) string {
			if withdrawn {
				return ""
			}
			return accounts(token)
		}}
		handler := reviewed(s.access())
		flood := func() {
			for i := range 100 {
				ask(t, handler, "/view/", fmt.Sprint([]string{"wrong", "tenant"}[i%2], i))
			}
		}
		wants := func(token string, want int) {
			t.Helper()
			if status := ask(t, handler, "/view/", token); status != want {
				t.Errorf("%s gets %d, want %d", token, status, want)
			}
		}
		wants("viewer", http.StatusOK)
		flood()
		if s.tokens != 1+reviewBurst {
			t.Errorf("100 refused tokens took %d reviews, want %d", s.tokens-1, reviewBurst)
		}
		wants("viewer of later", http.StatusTooManyRequests)
		time.Sleep(familiar - time.Second)
		flood()
		wants("viewer", http.StatusOK)
		time.Sleep(remembered)
		flood()
		withdrawn = true
		wants("viewer", http.StatusUnauthorized)
		wants("viewer", http.StatusTooManyRequests)
	})
}

// roundTripper answers HTTP requests.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestReviewsAreBounded checks that concurrent reviews are bounded in number and time, while the API
// server does not answer.
func TestReviewsAreBounded(t *testing.T) {
	documented.Bound(t, "reviews of tokens", fmt.Sprintf("%d refused tokens of an address at once", reviewBurst), fmt.Sprintf("%d a second", reviewRate),
		documented.Count(mostClients)+" addresses", fmt.Sprintf("%d concurrent reviews of %s each", mostReviews, documented.Time(reviewPatience)),
		documented.Time(remembered), documented.Count(mostRemembered)+" tokens")
	synctest.Test(t, func(t *testing.T) {
		var reviews atomic.Int32
		client, err := Reviews(&rest.Config{Host: "http://silent", Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			reviews.Add(1)
			<-r.Context().Done()
			return nil, r.Context().Err()
		})})
		if err != nil {
			t.Fatal(err)
		}
		handler := reviewed(Access{Reviews: client})
		begin := time.Now()
		var asking sync.WaitGroup
		for i := range mostReviews {
			asking.Go(func() { ask(t, handler, "/view/", fmt.Sprint("token", i)) })
		}
		synctest.Wait()
		if status := ask(t, handler, "/view/", "another"); status != http.StatusServiceUnavailable || time.Since(begin) > 0 {
			t.Errorf("another token gets %d after %v", status, time.Since(begin))
		}
		asking.Wait()
		if took := time.Since(begin); took != reviewPatience {
			t.Errorf("the reviews took %v", took)
		}
		if n := reviews.Load(); n != mostReviews {
			t.Errorf("%d reviews", n)
		}
	})
}

// jwt returns a token with claims. The API server, and not the endpoint, checks signatures.
func jwt(claims string) string {
	return "viewer." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".signature"
}

// TestLongTokens checks that a token of the shared account must end within an hour. Tokens of other
// accounts may live longer.
func TestLongTokens(t *testing.T) {
	for token, want := range map[string]int{
		jwt(`{"iat":1000,"exp":1600}`):  http.StatusOK,
		jwt(`{"iat":1000,"exp":4600}`):  http.StatusOK,
		jwt(`{"iat":1000,"exp":4601}`):  http.StatusUnauthorized,
		jwt(`{"iat":1000}`):             http.StatusUnauthorized,
		jwt(`{"exp":4600}`):             http.StatusUnauthorized,
		jwt(`{`):                        http.StatusUnauthorized,
		"viewer":                        http.StatusUnauthorized,
		"viewer.%.signature":            http.StatusUnauthorized,
		jwt(`{"iat":1,"exp":1e18}`):     http.StatusUnauthorized,
		jwt(`{"iat":"1","exp":"4600"}`): http.StatusUnauthorized,
	} {
		access := (&apiServer{known: accounts}).access()
		if status := ask(t, reviewed(access), "/view/", token); status != http.StatusOK {
			t.Errorf("another account's %s: %d", token, status)
		}
		access.SharedAccount = "viewer"
		if status := ask(t, reviewed(access), "/view/", token); status != want {
			t.Errorf("%s: %d, want %d", token, status, want)
		}
	}
}

// TestAudiences checks that tokens need the audience of the endpoint, if the endpoint has an audience.
func TestAudiences(t *testing.T) {
	for _, c := range []struct {
		audience string
		token    []string
		want     int
	}{
		{"", nil, http.StatusOK},
		{"agent", []string{"agent"}, http.StatusOK},
		{"agent", []string{"https://kubernetes.default.svc"}, http.StatusUnauthorized},
		{"agent", nil, http.StatusUnauthorized},
	} {
		access := (&apiServer{known: accounts, audiences: c.token}).access()
		access.Audience = c.audience
		if status := ask(t, reviewed(access), "/view/", "viewer"); status != c.want {
			t.Errorf("%q, a token for %q: %d, want %d", c.audience, c.token, status, c.want)
		}
	}
}
